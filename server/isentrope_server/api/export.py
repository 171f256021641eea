"""Export: all reports of a run as one Parquet, CSV or JSON lines file, written while they are read.

The columns are step, incarnation, rank, time (seconds since the Unix epoch) and one for each metric. A value that was
not measured is null, in CSV an empty field; NaN and infinities are values, in JSON as text. With labels there are two
more columns before the metrics: control_version, 0 where none was active, and labels, an object, in Parquet and CSV as
JSON.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from starlette.types import Message, Send

from isentrope_server.api.dependencies import BackendDep, RunDep, read_of
from isentrope_server.api.metrics import check_known
from isentrope_server.backend import Backend
from isentrope_server.errors import DeletedRun
from isentrope_server.store import runs, streams
from isentrope_server.store.reports import series, steps
from isentrope_server.store.reports.steps import Piece
from isentrope_server.store.runs import Run
from isentrope_server.store.streams import Incarnation
from isentrope_wire.numbers import number

_FIXED = ("step", "incarnation", "rank", "time")
_LABELLED = (*_FIXED, "control_version", "labels")
_ROWS_IN_A_GROUP = 16_000
_CELLS_IN_A_GROUP = 500_000
"""Limits of a row group in Parquet: some megabytes of memory, and few enough groups to be read quickly."""
_CELLS_SPELLED_AT_ONCE = 50_000
"""In CSV and JSON lines: a number takes ten times as much memory as text than it does stored."""
UNREAD_SECONDS = 30.0
"""An export whose reader takes nothing for this long is ended: it would keep others waiting."""


class ExportFormat(StrEnum):
    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"

    @property
    def media_type(self) -> str:
        return {
            ExportFormat.PARQUET: "application/vnd.apache.parquet",
            ExportFormat.CSV: "text/csv; charset=utf-8",
            ExportFormat.JSONL: "application/x-ndjson",
        }[self]


def write(
    pieces: Iterable[Piece], names: Sequence[str], export_format: ExportFormat, *, labelled: bool = False
) -> Iterator[bytes]:
    """Write a file with these metrics, in pieces of bytes."""
    columns = column_names(names, labelled=labelled)
    of_labels = (pa.int64(), pa.string()) if labelled else ()
    kinds = (pa.int64(), pa.string(), pa.int32(), pa.float64(), *of_labels, *[pa.float64()] * len(names))
    schema = pa.schema(list(zip(columns, kinds, strict=True)))
    batches = (_batch(one, names, schema, labelled) for one in pieces)
    match export_format:
        case ExportFormat.PARQUET:
            return _parquet(batches, schema)
        case ExportFormat.CSV:
            return _csv(batches, columns, len(names))
        case ExportFormat.JSONL:
            return _json_lines(batches, columns, len(names), labelled)


def column_names(names: Sequence[str], *, labelled: bool = False) -> list[str]:
    """Names of all columns. A metric with the name of a fixed column is called `metric/NAME`.

    Where another metric has that name, `metric/` is added once more.
    """
    fixed = _LABELLED if labelled else _FIXED
    taken = {*fixed, *names}
    columns = [*fixed]
    for name in names:
        column = name
        if name in fixed:
            while column in taken:
                column = f"metric/{column}"
            taken.add(column)
        columns.append(column)
    return columns


def _batch(one: Piece, names: Sequence[str], schema: pa.Schema, labelled: bool) -> pa.RecordBatch:
    rows = len(one.steps)
    columns = [
        pa.array(one.steps),
        pa.array([one.incarnation] * rows, pa.string()),
        pa.array(np.full(rows, one.rank, dtype=np.int32)),
        pa.array(one.recorded_at),
    ]
    if labelled:
        labels = [json.dumps(dict(labels), sort_keys=True) for labels in one.labels]
        columns += [pa.array(one.control_versions), pa.array(labels, pa.string())]
    for name in names:
        metric = one.metrics.get(name)
        columns.append(
            pa.nulls(rows, pa.float64()) if metric is None else pa.array(metric.values, mask=~metric.measured)
        )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _parquet(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[bytes]:
    rows_in_a_group = min(_ROWS_IN_A_GROUP, _CELLS_IN_A_GROUP // len(schema))
    sink = _Appending()
    with pq.ParquetWriter(sink, schema) as writer:
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch)
            if sum(batch.num_rows for batch in waiting) >= rows_in_a_group:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting = []
                yield sink.take()
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
    yield sink.take()


class _Appending(io.BytesIO):
    """A file for Parquet's writer, which only appends and calls `tell`; written bytes are taken away in between."""

    _taken = 0

    def tell(self) -> int:
        return self._taken + super().tell()

    def take(self) -> bytes:
        data = self.getvalue()
        self._taken += len(data)
        self.seek(0)
        self.truncate(0)
        return data

    def close(self) -> None:
        """Parquet's writer closes it before the last bytes are taken."""


def _csv(batches: Iterable[pa.RecordBatch], columns: Sequence[str], metrics: int) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_no_formula, columns))
    yield text.getvalue().encode()
    for rows in _few_rows(batches, metrics):
        text.seek(0)
        text.truncate()
        writer.writerows(rows)
        yield text.getvalue().encode()


def _no_formula(text: str) -> str:
    """A cell that a spreadsheet does not run as a formula: an apostrophe is added, also to one that begins with one."""
    return f"'{text}" if text.lstrip("'").startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _json_lines(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], metrics: int, labelled: bool
) -> Iterator[bytes]:
    for rows in _few_rows(batches, metrics):
        named = (dict(zip(columns, row, strict=True)) for row in rows)
        objects = ({**row, "labels": json.loads(row["labels"])} for row in named) if labelled else named
        yield "".join(f"{json.dumps(row)}\n" for row in objects).encode()


def _few_rows(batches: Iterable[pa.RecordBatch], metrics: int) -> Iterator[Iterator[tuple[Any, ...]]]:
    """Rows as the API spells the numbers of the metrics, which come last; so many at once that they take little memory."""
    for batch in batches:
        at_once = max(1, _CELLS_SPELLED_AT_ONCE // batch.num_columns)
        for start in range(0, batch.num_rows, at_once):
            columns = [column.to_pylist() for column in batch.slice(start, at_once).columns]
            fixed = len(columns) - metrics
            columns[fixed:] = ([one if one is None else number(one) for one in values] for values in columns[fixed:])
            yield zip(*columns, strict=True)


class _Export(StreamingResponse):
    """A file that is written while it is read, when its turn has come."""

    def __init__(self, turn: asyncio.Semaphore, content: Iterator[bytes], **options: Any) -> None:
        super().__init__(content, **options)
        self._turn = turn

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(UNREAD_SECONDS):
                await send(message)

        async with self._turn:
            # The answer stays incomplete, so that the server closes the connection.
            with suppress(TimeoutError):
                await super().stream_response(send_in_time)


router = APIRouter(tags=["metrics"])

_FILES = {"content": {one.media_type.split(";")[0]: {} for one in ExportFormat}, "description": "The file."}


@router.get("/runs/{run_id}/export", response_class=StreamingResponse, responses={200: _FILES})
async def export_run(
    run: RunDep,
    backend: BackendDep,
    format: Annotated[ExportFormat, Query(description="Of the file.")] = ExportFormat.PARQUET,
    name: Annotated[list[str] | None, Query(max_length=10_000, description="Only these metrics.")] = None,
    labels: Annotated[bool, Query(description="Also columns control_version and labels.")] = False,
) -> StreamingResponse:
    """Every report of every rank and incarnation up to the newest one now, those repeated by a resumed run included.

    Columns step, incarnation, rank, time (seconds since the Unix epoch), then the metrics by name. What was not
    measured is null (in CSV an empty field), NaN is NaN. With `labels`, columns control_version and labels (a JSON
    object) precede the metrics. Sorted by incarnation, rank and order of arrival.

    404 `metric_unknown`: the run has reports, but never one of any of these names, and no probe promises them.
    """
    known, through, found = await read_of(
        backend,
        run,
        lambda c: (series.names(c, run.key), runs.last_position(c, run.key), streams.incarnations(c, run.key)),
    )
    if name is not None:
        check_known(run, name, known)
    names = sorted(known) if name is None else list(dict.fromkeys(name))
    return _Export(
        backend.exporting,
        write(_pieces(backend, run, names, found, through), names, format, labelled=labels),
        media_type=format.media_type,
        headers={
            "Content-Disposition": f'attachment; filename="{run.id}.{format}"',
            "Cache-Control": "no-store",
        },
    )


def _pieces(
    backend: Backend, run: Run, names: Sequence[str], found: Sequence[Incarnation], through: int
) -> Iterator[Piece]:
    """Read pieces, each on its own connection: a slow client must not keep a transaction open."""
    for stream in (stream for incarnation in found for stream in incarnation.streams):
        position = 0
        while True:
            with backend.database.reading() as connection:
                piece = steps.piece_after(connection, stream, names, after=position, through=through)
                if runs.key_of(connection, run.id) != run.key:
                    raise DeletedRun(f"Run {run.id} was deleted while it was exported.")
            if piece is None:
                break
            position = int(piece.positions[-1])
            yield piece
