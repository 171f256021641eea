"""One step's whole report."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from isentrope_server.api.dependencies import BackendDep, RunDep, read_of
from isentrope_server.api.schemas import StepOut
from isentrope_server.errors import NotFound
from isentrope_server.store import steps

router = APIRouter(tags=["steps"])


@router.get("/runs/{run_id}/steps/{step}")
async def get_step(run: RunDep, step: Annotated[int, Path(ge=0, le=2**63 - 1)], backend: BackendDep) -> StepOut:
    """The report of one step: scalars, histograms, labels, and the control it was made under."""
    stored = await read_of(backend, run, lambda connection: steps.find(connection, run.key, step))
    if stored is None:
        raise NotFound(f"Run {run.id} has no report of step {step}.", step=step)
    return StepOut.of(stored)
