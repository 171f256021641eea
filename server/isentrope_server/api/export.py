"""Export: all reports of a run as one Parquet, CSV or JSON lines file, written while they are read.

The columns are step, incarnation, rank, time (seconds since the Unix epoch) and one for each
metric. A value that was not measured is null, in CSV an empty field; NaN and infinities are values,
in JSON as text. With labels there are two more columns before the metrics: control_version, 0 where
none was active, and labels, an object, in Parquet and CSV as JSON.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from starlette.types import Message, Send

from isentrope_server.api.dependencies import BackendDep, PrincipalDep, RunDep, read_of
from isentrope_server.api.metrics import check_known
from isentrope_server.backend import Backend
from isentrope_server.errors import DeletedRun
from isentrope_server.store import runs, streams
from isentrope_server.store.reports import series, steps
from isentrope_server.store.reports.steps import Metric, Piece
from isentrope_server.store.runs import Run
from isentrope_server.store.streams import Incarnation
from isentrope_wire.numbers import no_formula, number, printable

_log = logging.getLogger(__name__)

_FIXED = ("step", "incarnation", "rank", "time")
_LABELLED = (*_FIXED, "control_version", "labels")
_ROWS_IN_A_GROUP = 16_000
_CELLS_IN_A_GROUP = 500_000
"""Limits of a row group in Parquet: some megabytes of memory, and few enough groups to be read
quickly."""
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
    pieces: Iterable[Piece],
    names: Sequence[str],
    export_format: ExportFormat,
    *,
    labelled: bool = False,
) -> Iterator[bytes]:
    """Write a file with these metrics, in pieces of bytes."""
    how = {ExportFormat.PARQUET: _parquet, ExportFormat.CSV: _csv, ExportFormat.JSONL: _json_lines}
    return how[export_format](pieces, names, labelled)


def column_names(names: Sequence[str], *, labelled: bool = False) -> list[str]:
    """Names of all columns. A metric with the name of a fixed column is called `metric/NAME`. Where
    another metric has that name, `metric/` is added once more."""
    fixed: tuple[str, ...] = _FIXED
    if labelled:
        fixed = _LABELLED
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


def _parquet(pieces: Iterable[Piece], names: Sequence[str], labelled: bool) -> Iterator[bytes]:
    of_labels = (pa.int64(), pa.string()) if labelled else ()
    kinds = (
        pa.int64(),
        pa.string(),
        pa.int32(),
        pa.float64(),
        *of_labels,
        *[pa.float64()] * len(names),
    )
    schema = pa.schema(list(zip(column_names(names, labelled=labelled), kinds, strict=True)))
    rows_in_a_group = min(_ROWS_IN_A_GROUP, _CELLS_IN_A_GROUP // len(schema))
    sink = _Appending()
    with pq.ParquetWriter(sink, schema) as writer:
        waiting: list[pa.RecordBatch] = []
        for piece in pieces:
            waiting.append(_batch(piece, names, schema, labelled))
            if sum(batch.num_rows for batch in waiting) >= rows_in_a_group:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting = []
                yield sink.take()
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
    yield sink.take()


class _Appending(io.BytesIO):
    """A file for Parquet's writer, which only appends and calls `tell`; written bytes are taken
    away in between."""

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


def _batch(piece: Piece, names: Sequence[str], schema: pa.Schema, labelled: bool) -> pa.RecordBatch:
    rows = len(piece.steps)
    columns = [
        pa.array(piece.steps),
        pa.array([piece.incarnation] * rows, pa.string()),
        pa.array(np.full(rows, piece.rank, dtype=np.int32)),
        pa.array(piece.recorded_at),
    ]
    if labelled:
        columns += [pa.array(piece.control_versions), pa.array(_format_row(piece), pa.string())]
    for name in names:
        metric = piece.metrics.get(name)
        columns.append(
            pa.nulls(rows, pa.float64())
            if metric is None
            else pa.array(metric.values, mask=~metric.measured)
        )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _csv(pieces: Iterable[Piece], names: Sequence[str], labelled: bool) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(no_formula, column_names(names, labelled=labelled)))
    yield text.getvalue().encode()
    for piece in pieces:
        for rows in _few_rows(piece, names, _format_row(piece) if labelled else None):
            text.seek(0)
            text.truncate()
            writer.writerows(rows)
            yield text.getvalue().encode()


def _json_lines(pieces: Iterable[Piece], names: Sequence[str], labelled: bool) -> Iterator[bytes]:
    columns = column_names(names, labelled=labelled)
    for piece in pieces:
        for rows in _few_rows(piece, names, piece.labels if labelled else None):
            yield "".join(
                f"{json.dumps(dict(zip(columns, row, strict=True)))}\n" for row in rows
            ).encode()


def _format_row(piece: Piece) -> list[str]:
    return [json.dumps(dict(labels), sort_keys=True) for labels in piece.labels]


def _few_rows(
    piece: Piece, names: Sequence[str], labels: Sequence[object] | None
) -> Iterator[Iterator[tuple[object, ...]]]:
    """The rows of a piece as the API spells numbers, so many at once that they take little
    memory."""
    at_once = max(1, _CELLS_SPELLED_AT_ONCE // (len(names) + len(_LABELLED)))
    for start in range(0, len(piece.steps), at_once):
        few = slice(start, start + at_once)
        steps = piece.steps[few].tolist()
        columns: list[Iterable[object]] = [
            steps,
            [piece.incarnation] * len(steps),
            [piece.rank] * len(steps),
            piece.recorded_at[few].tolist(),
        ]
        if labels is not None:
            columns += [piece.control_versions[few].tolist(), labels[few]]
        for name in names:
            metric = piece.metrics.get(name)
            columns.append([None] * len(steps) if metric is None else _spelled(metric, few))
        yield zip(*columns, strict=True)


def _spelled(metric: Metric, few: slice) -> list[object]:
    """Numbers, those that are not finite as text, None where nothing was measured; csv leaves such
    a field empty."""
    pairs = zip(metric.values[few].tolist(), metric.measured[few].tolist(), strict=True)
    return [number(value) if measured else None for value, measured in pairs]


class _EndedExports(logging.Filter):
    """Leaves out uvicorn's error about an answer that is not complete where it is an export that
    was ended: only so does uvicorn close the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.unsaid = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not self.unsaid or "without completing response" not in record.getMessage():
            return True
        self.unsaid -= 1
        return False


_ended = _EndedExports()
logging.getLogger("uvicorn.error").addFilter(_ended)


class _Export(StreamingResponse):
    """A file that is written while it is read, when its turn has come."""

    def __init__(
        self,
        turns: Sequence[asyncio.Semaphore],
        reader: str,
        content: Iterator[bytes],
        **options: Any,
    ) -> None:
        """`turns` are taken in their order; `reader` is named in the log."""
        super().__init__(content, **options)
        self._turns = turns
        self._reader = reader

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(UNREAD_SECONDS):
                await send(message)

        async with AsyncExitStack() as held:
            for turn in self._turns:
                await held.enter_async_context(turn)
            try:
                await super().stream_response(send_in_time)
            except TimeoutError:
                # The answer stays incomplete, so that the server closes the connection.
                _ended.unsaid += 1
                _log.debug(
                    "An export of %s was ended: nothing was read for %g s.",
                    self._reader,
                    UNREAD_SECONDS,
                )


router = APIRouter(tags=["metrics"])

_FILES = {
    "content": {one.media_type.split(";")[0]: {} for one in ExportFormat},
    "description": "The file.",
}


@router.get("/runs/{run_id}/export", response_class=StreamingResponse, responses={200: _FILES})
async def export_run(
    run: RunDep,
    backend: BackendDep,
    principal: PrincipalDep,
    format: Annotated[ExportFormat, Query(description="Of the file.")] = ExportFormat.PARQUET,
    name: Annotated[
        list[str] | None, Query(max_length=10_000, description="Only these metrics.")
    ] = None,
    labels: Annotated[bool, Query(description="Also columns control_version and labels.")] = False,
) -> StreamingResponse:
    """Every report of every rank and incarnation up to the newest one now, those repeated by a
    resumed run included.

    Columns step, incarnation, rank, time (seconds since the Unix epoch), then the metrics by name.
    What was not measured is null (in CSV an empty field), NaN is NaN. With `labels`, columns
    control_version and labels (a JSON object) precede the metrics. Sorted by incarnation, rank and
    order of arrival.

    404 `metric_unknown`: the run has reports, but never one of any of these names, and no probe
    promises them."""
    known, through, incarnations = await read_of(
        backend,
        run,
        lambda c: (
            series.names(c, run.key),
            runs.last_position(c, run.key),
            streams.incarnations(c, run.key),
        ),
    )
    if name is not None:
        check_known(run, name, known)
    if name is None:
        names = sorted(known)
    else:
        names = list(dict.fromkeys(name))
    return _Export(
        (backend.exporting_of[principal.token_id], backend.exporting),
        printable(principal.name),
        write(_pieces(backend, run, names, incarnations, through), names, format, labelled=labels),
        media_type=format.media_type,
        headers={
            "Content-Disposition": f'attachment; filename="{run.id}.{format}"',
            "Cache-Control": "no-store",
        },
    )


def _pieces(
    backend: Backend,
    run: Run,
    names: Sequence[str],
    incarnations: Sequence[Incarnation],
    through: int,
) -> Iterator[Piece]:
    """Read pieces, each on its own connection: a slow client must not keep a transaction open."""
    for stream in (stream for incarnation in incarnations for stream in incarnation.streams):
        position = 0
        while True:
            with backend.database.reading() as connection:
                piece = steps.piece_after(
                    connection, stream, names, after=position, through=through
                )
                if runs.key_of(connection, run.id) != run.key:
                    raise DeletedRun(f"Run {run.id} was deleted while it was exported.")
            if piece is None:
                break
            position = int(piece.positions[-1])
            yield piece
