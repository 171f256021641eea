"""Export: all reports of a run as one file, streamed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from sqlalchemy import Connection

from isentrope_server.api.dependencies import BackendDep, RunDep, read_of
from isentrope_server.api.metrics import check_known
from isentrope_server.backend import Backend
from isentrope_server.errors import DeletedRun
from isentrope_server.export_formats import ExportFormat, StreamPiece, write
from isentrope_server.store import report_pieces, runs, series, streams
from isentrope_server.store.runs import Run
from isentrope_server.store.streams import Incarnation

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
    """Every report of every rank and incarnation, those that a resume overruled too, up to the newest one now.

    Columns step, incarnation, rank, time (seconds since the Unix epoch), then the metrics by name. What was not measured
    is null (in CSV an empty field), NaN is NaN. With `labels`, columns control_version and labels (a JSON object) stand in
    front of the metrics. By incarnation, rank, and the order in which the reports came.

    404 `metric_unknown`: the run has reports, but never one of any of these names, and no probe promises them.
    """
    known, contents = await read_of(backend, run, lambda connection: _contents(connection, run))
    if name is not None:
        check_known(run, name, known)
    names = sorted(known) if name is None else list(dict.fromkeys(name))
    return StreamingResponse(
        write(_pieces(backend, run, names, contents), names, format, labelled=labels),
        media_type=format.media_type,
        headers={
            "Content-Disposition": f'attachment; filename="{run.id}.{format}"',
            "Cache-Control": "no-store",
        },
    )


@dataclass(frozen=True, slots=True)
class _Contents:
    """What goes into the file: everything of these incarnations up to a position."""

    through: int
    incarnations: Sequence[Incarnation]


def _contents(connection: Connection, run: Run) -> tuple[frozenset[str], _Contents]:
    """The names of the run's metrics, and the contents as of one moment."""
    contents = _Contents(runs.last_position(connection, run.key), streams.incarnations(connection, run.key))
    return series.names(connection, run.key), contents


def _pieces(backend: Backend, run: Run, names: Sequence[str], contents: _Contents) -> Iterator[StreamPiece]:
    """Each piece is read on a connection of its own: a slow reader keeps no state of the database alive."""
    for incarnation in contents.incarnations:
        for stream in incarnation.streams:
            position = 0
            while True:
                with backend.database.reading() as connection:
                    piece = report_pieces.after(
                        connection, run.key, stream.key, names, after=position, through=contents.through
                    )
                    if runs.key_of(connection, run.id) != run.key:
                        raise DeletedRun(f"Run {run.id} was deleted while it was exported.")
                if piece is None:
                    break
                position = int(piece.positions[-1])
                yield StreamPiece(incarnation=incarnation.name, rank=stream.rank, piece=piece)
