"""What a run's probe thought a person should know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from isentrope_server.api import cursors
from isentrope_server.api.dependencies import BackendDep, RunDep, read_of
from isentrope_server.api.schemas import Page
from isentrope_server.store import alerts
from isentrope_server.store.alerts import StoredAlert

router = APIRouter(tags=["steps"])


class AlertOut(BaseModel):
    """One alert, said at the step it was found."""

    step: int
    recorded_at: float
    kind: str = Field(
        description="collapse, explosion, self_check, prediction, dead_knob, zero_advantage, not_finite or left_out."
    )
    reason: str
    evidence: Mapping[str, float | None] = Field(description="The numbers the reason is made from.")

    @classmethod
    def of(cls, alert: StoredAlert) -> Self:
        return cls(
            step=alert.step,
            recorded_at=alert.recorded_at,
            kind=alert.kind,
            reason=alert.reason,
            evidence=alert.evidence,
        )


@router.get("/runs/{run_id}/alerts")
async def list_alerts(
    run: RunDep,
    backend: BackendDep,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Page[AlertOut]:
    """Newest first. A resumed run's alerts replace those of the steps it repeats."""
    before = None
    if cursor is not None:
        position, number = cursors.decode(cursor, 2)
        before = (position, number)
    found = await read_of(
        backend, run, lambda connection: alerts.newest(connection, run.key, before=before, limit=limit + 1)
    )
    items = found[:limit]
    return Page(
        items=[AlertOut.of(item) for item in items],
        next_cursor=cursors.encode(items[-1].position, items[-1].number) if len(found) > limit else None,
    )
