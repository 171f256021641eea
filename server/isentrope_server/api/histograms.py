"""One distribution over steps."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy import Connection

from isentrope_server.api.dependencies import BackendDep, RunDep, StepRangeDep, read_of
from isentrope_server.api.large_answers import json_answer
from isentrope_server.api.numbers import number
from isentrope_server.api.schemas import HistogramColumns
from isentrope_server.errors import UnknownHistogram
from isentrope_server.store import histograms
from isentrope_server.store.histograms import StoredHistogram
from isentrope_server.store.runs import Run
from isentrope_server.store.series_parts import StepRange
from isentrope_wire.metrics import HISTOGRAMS

router = APIRouter(tags=["histograms"])


@router.get("/runs/{run_id}/histograms/{name:path}", response_model=HistogramColumns)
async def get_histograms(
    run: RunDep,
    name: str,
    backend: BackendDep,
    wanted: StepRangeDep,
    points: Annotated[int | None, Query(ge=1, le=10_000)] = None,
) -> Response:
    """One histogram per step. With `points`, neighbouring steps whose bins agree are added up.

    404 `histogram_unknown`: the run has reports, but none with such a histogram, and no probe promises it.
    """
    return await read_of(backend, run, lambda c: json_answer(_columns(name, _read(c, run, name, wanted, points))))


def _columns(name: str, found: list[StoredHistogram]) -> dict[str, object]:
    """A `HistogramColumns`, unchecked: that would cost more than reading it."""
    return {
        "name": name,
        "step": [histogram.step for histogram in found],
        "low": [number(histogram.low) for histogram in found],
        "high": [number(histogram.high) for histogram in found],
        "counts": [histogram.counts.tolist() for histogram in found],
        "not_finite": [histogram.not_finite for histogram in found],
    }


def _read(connection: Connection, run: Run, name: str, wanted: StepRange, points: int | None) -> list[StoredHistogram]:
    found = histograms.read(connection, run.key, name, wanted, points=points)
    if found or run.step is None or name in HISTOGRAMS:
        return found
    if not histograms.is_known(connection, run.key, name):
        raise UnknownHistogram(
            f"Run {run.id} never reported a histogram {name[:100]!r}; "
            f"GET /api/v1/runs/{run.id}/steps/{run.step} shows those of its newest step.",
            name=name[:100],
        )
    return found
