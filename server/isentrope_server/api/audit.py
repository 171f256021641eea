"""The audit trail: who changed what, and whether it is whole."""

from __future__ import annotations

from typing import Annotated, Any, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from isentrope_server.api import cursors
from isentrope_server.api.dependencies import BackendDep
from isentrope_server.api.numbers import plain_json
from isentrope_server.api.schemas import Page
from isentrope_server.store import audit
from isentrope_server.store.audit import AuditEntry, Verification

router = APIRouter(tags=["audit"])


class AuditEntryOut(BaseModel):
    """One change."""

    number: int = Field(description="Rises from entry to entry; numbers may be left out.")
    at: float
    actor: str = Field(description="Name of a token, `rank N`, server, or command line.")
    token_id: str | None = Field(description="Id of the token the actor came with; names may repeat.")
    action: str
    subject: str
    change: dict[str, Any] = Field(description="What is different, old and new where both exist.")
    chain_hash: str = Field(description="SHA-256 over the hash before and this entry.")

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        return cls(
            number=entry.key,
            at=entry.at,
            actor=entry.actor,
            token_id=entry.token_id,
            action=entry.action,
            subject=entry.subject,
            change={name: plain_json(value) for name, value in entry.change.items()},
            chain_hash=entry.chain_hash.hex(),
        )


class VerificationOut(BaseModel):
    """What a look at every entry found."""

    is_whole: bool
    entries: int
    head: str = Field(description="Hash of the newest entry. Keep it elsewhere, and ask later whether it still stands.")
    broken_at: int | None = Field(description="Number of the first entry whose hash doesn't fit.")
    is_cut: bool = Field(description="Entries are missing at the end, or were added past it.")
    knows_earlier_head: bool | None = Field(description="Whether the hash asked for is one of the chain's.")

    @classmethod
    def of(cls, found: Verification) -> Self:
        return cls(
            is_whole=found.is_whole,
            entries=found.entries,
            head=found.head.hex(),
            broken_at=found.broken_at,
            is_cut=found.is_cut,
            knows_earlier_head=found.knows_earlier_head,
        )


EarlierHead = Annotated[
    str | None,
    Query(pattern="^[0-9a-f]{64}$", description="`head` of an earlier verification: does it still stand?"),
]


@router.get("/audit")
async def list_audit(
    backend: BackendDep, cursor: str | None = None, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> Page[AuditEntryOut]:
    """Every change of controls, runs and tokens, newest first."""
    before = None if cursor is None else cursors.decode(cursor, 1)[0]
    found = await backend.read(lambda connection: audit.page(connection, before_key=before, limit=limit + 1))
    items = found[:limit]
    return Page(
        items=[AuditEntryOut.of(item) for item in items],
        next_cursor=cursors.encode(items[-1].key) if len(found) > limit else None,
    )


@router.get("/audit/verification")
async def verify_audit(backend: BackendDep, head: EarlierHead = None) -> VerificationOut:
    """Read the whole trail and check each link: a changed, missing, moved or cut entry shows."""
    earlier = None if head is None else bytes.fromhex(head)
    return VerificationOut.of(await backend.read(lambda connection: audit.verify(connection, earlier_head=earlier)))
