"""Access tokens: made, listed and revoked by whoever holds an admin token.

The audit trail: who changed what, and whether it is whole.

Logging a browser out.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Self

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from isentrope_server.api import dependencies
from isentrope_server.api.dependencies import BackendDep, PrincipalDep
from isentrope_server.api.schemas import CreatedToken, Page, TokenOut, TokenRequest
from isentrope_server.errors import NotFound
from isentrope_server.security.sessions import BrowserSessions, ended_cookie
from isentrope_server.security.tokens import issue_token, revoke_token
from isentrope_server.store import access
from isentrope_server.store.access import AuditEntry, Verification
from isentrope_wire.numbers import plain_json

router = APIRouter(tags=["administration"])


@router.get("/access-tokens")
async def list_tokens(backend: BackendDep) -> Page[TokenOut]:
    """Every token, revoked ones too, without its secret."""
    return Page(items=[TokenOut.of(token) for token in await backend.read(access.all_tokens)], next_cursor=None)


@router.post("/access-tokens", status_code=201)
async def create_token(request: TokenRequest, backend: BackendDep, principal: PrincipalDep) -> CreatedToken:
    """Make a token. Its secret is in this answer and nowhere else."""
    name = request.name or str(request.scope)
    issued = await backend.write(
        lambda t: issue_token(
            t,
            name,
            request.scope,
            by=principal.name,
            by_token=principal.token_id,
            now=time.time(),
            run=request.run,
            project=request.project,
        )
    )
    await backend.reload_tokens()
    return CreatedToken(**TokenOut.of(issued.stored).model_dump(), token=issued.secret)


@router.delete("/access-tokens/{token_id}", status_code=204)
async def delete_token(token_id: str, backend: BackendDep, principal: PrincipalDep) -> Response:
    """Revoke a token: from now on it opens nothing, and what it has open is closed."""
    revoked = await backend.write(
        lambda t: revoke_token(t, token_id, by=principal.name, by_token=principal.token_id, now=time.time())
    )
    if not revoked:
        raise NotFound(f"There is no token {token_id[:64]!r} in force.", token_id=token_id[:64])
    await backend.reload_tokens()
    return Response(status_code=204)


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
    before = None if cursor is None else dependencies.decode(cursor, 1)[0]
    found = await backend.read(lambda connection: access.audit_page(connection, before_key=before, limit=limit + 1))
    items = found[:limit]
    return Page(
        items=[AuditEntryOut.of(item) for item in items],
        next_cursor=dependencies.encode(items[-1].key) if len(found) > limit else None,
    )


@router.get("/audit/verification")
async def verify_audit(backend: BackendDep, head: EarlierHead = None) -> VerificationOut:
    """Read the whole trail and check each link: a changed, missing, moved or cut entry shows."""
    earlier = None if head is None else bytes.fromhex(head)
    return VerificationOut.of(
        await backend.read(lambda connection: access.verify_audit(connection, earlier_head=earlier))
    )


browser_router = APIRouter(include_in_schema=False)


@browser_router.post("/logout", status_code=204)
async def log_out(request: Request, principal: PrincipalDep) -> Response:
    """End the session in the browser's cookie, and what it has open. The token stays in force."""
    sessions: BrowserSessions = request.app.state.sessions
    await sessions.end(principal)
    answer = Response(status_code=204, headers={"cache-control": "no-store"})
    secure = request.url.scheme == "https"
    answer.headers.append("set-cookie", ended_cookie(sessions.cookie_name(secure=secure), secure=secure))
    return answer
