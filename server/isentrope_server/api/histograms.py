"""One distribution over steps."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from isentrope_server.api.dependencies import BackendDep, RunDep
from isentrope_server.api.metrics import StepParam
from isentrope_server.api.numbers import number
from isentrope_server.api.schemas import HistogramColumns
from isentrope_server.store import histograms
from isentrope_server.store.series import StepRange

router = APIRouter(tags=["histograms"])


@router.get("/runs/{run_id}/histograms/{name:path}")
async def get_histograms(
    run: RunDep,
    name: str,
    backend: BackendDep,
    from_step: StepParam = None,
    to_step: StepParam = None,
    points: Annotated[int | None, Query(ge=1, le=10_000)] = None,
) -> HistogramColumns:
    """One histogram per step. With `points`, neighbouring steps whose bins agree are added up."""
    wanted = StepRange(first=from_step, last=to_step)
    found = await backend.read(lambda connection: histograms.read(connection, run.key, name, wanted, points=points))
    return HistogramColumns(
        name=name,
        step=[histogram.step for histogram in found],
        low=[number(histogram.low) for histogram in found],
        high=[number(histogram.high) for histogram in found],
        counts=[histogram.counts.tolist() for histogram in found],
        not_finite=[histogram.not_finite for histogram in found],
    )
