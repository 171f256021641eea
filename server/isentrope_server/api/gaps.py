"""What a run's record lacks, and why."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from isentrope_server.api import cursors
from isentrope_server.api.dependencies import BackendDep, RunDep, read_of
from isentrope_server.api.schemas import Page
from isentrope_server.store import gaps
from isentrope_server.store.gaps import StoredGap

router = APIRouter(tags=["steps"])


class GapOut(BaseModel):
    """Records of one rank that were lost before they reached the server."""

    incarnation: str
    rank: int
    first_seq: int
    last_seq: int
    reason: str = Field(description="What the probe's spool says: a full queue, a full disk, a damaged segment.")

    @classmethod
    def of(cls, gap: StoredGap) -> Self:
        return cls(
            incarnation=gap.incarnation,
            rank=gap.rank,
            first_seq=gap.first_seq,
            last_seq=gap.last_seq,
            reason=gap.reason,
        )


@router.get("/runs/{run_id}/gaps")
async def list_gaps(
    run: RunDep,
    backend: BackendDep,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Page[GapOut]:
    """Newest first. What is not lost but late is no gap."""
    before = None
    if cursor is not None:
        stream_key, first_seq = cursors.decode(cursor, 2)
        before = (stream_key, first_seq)
    found = await read_of(backend, run, lambda c: gaps.newest(c, run.key, before=before, limit=limit + 1))
    items = found[:limit]
    return Page(
        items=[GapOut.of(item) for item in items],
        next_cursor=cursors.encode(items[-1].stream_key, items[-1].first_seq) if len(found) > limit else None,
    )
