"""Administration: who asks, access tokens, the audit trail, and a browser's log-out."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from isentrope_server.api import dependencies
from isentrope_server.api.dependencies import BackendDep, Body, PrincipalDep
from isentrope_server.errors import NotFound
from isentrope_server.security.sessions import BrowserSessions
from isentrope_server.security.tokens import NewToken, issue_token, revoke_token
from isentrope_server.store import access
from isentrope_server.store.access import AuditEntry as StoredEntry
from isentrope_server.store.access import StoredToken, Verification
from isentrope_wire.answers import AccessToken, AuditEntry, AuditVerification, CreatedToken, Me, Page, TokenScope
from isentrope_wire.numbers import plain_json

router = APIRouter(tags=["administration"])


class TokenRequest(Body):
    """The token to make."""

    scope: TokenScope
    name: str | None = Field(
        default=None, min_length=1, max_length=128, description="Author of every change made with it; null: the scope."
    )
    run: str | None = Field(
        default=None, min_length=1, max_length=128, description="Only with ingest: the one run it reports, id or name."
    )
    project: str | None = Field(
        default=None, min_length=1, max_length=500, description="Only with ingest: the project whose runs it reports."
    )


@router.get("/me")
async def get_me(request: Request, principal: PrincipalDep) -> Me:
    """The token that this request was made with, or the one that the browser logged in with."""
    return Me(
        token_id=principal.token_id,
        name=principal.name,
        scope=principal.scope,
        is_owner=principal.is_owner,
        is_session=request.state.is_session,
    )


@router.get("/access-tokens")
async def list_tokens(backend: BackendDep) -> Page[AccessToken]:
    """Every token, revoked ones too, without its secret."""
    return Page(items=[access_token(token) for token in await backend.read(access.all_tokens)], next_cursor=None)


def access_token(token: StoredToken) -> AccessToken:
    """The token without its secret."""
    return AccessToken(
        id=token.id,
        name=token.name,
        scope=TokenScope(token.scope),
        created_at=token.created_at,
        revoked_at=token.revoked_at,
        last_used_at=token.last_used_at,
        run=token.run,
        project=token.project,
    )


def created_token(issued: NewToken) -> CreatedToken:
    """The token with its secret."""
    return CreatedToken(**asdict(access_token(issued.stored)), token=issued.secret)


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
    return created_token(issued)


@router.delete("/access-tokens/{token_id}", status_code=204)
async def delete_token(token_id: str, backend: BackendDep, principal: PrincipalDep) -> Response:
    """Revoke a token: requests with it are refused from now on, and its streams end within ten seconds."""
    revoked = await backend.write(
        lambda t: revoke_token(t, token_id, by=principal.name, by_token=principal.token_id, now=time.time())
    )
    if not revoked:
        raise NotFound(f"There is no active token {token_id[:64]!r}.", token_id=token_id[:64])
    await backend.reload_tokens()
    return Response(status_code=204)


EarlierHead = Annotated[
    str | None,
    Query(pattern="^[0-9a-f]{64}$", description="`head` of an earlier verification; checked to be part of the trail."),
]


@router.get("/audit")
async def list_audit(
    backend: BackendDep,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    run: Annotated[str | None, Query(max_length=128, description="Only changes of this run and its control.")] = None,
) -> Page[AuditEntry]:
    """Every change of controls, runs and tokens, newest first."""
    before = None if cursor is None else dependencies.decode(cursor, 1)[0]
    found = await backend.read(
        lambda connection: access.audit_page(connection, before_key=before, limit=limit + 1, run_id=run)
    )
    items = found[:limit]
    return Page(
        items=[audit_entry(item) for item in items],
        next_cursor=dependencies.encode(items[-1].key) if len(found) > limit else None,
    )


def audit_entry(entry: StoredEntry) -> AuditEntry:
    """The entry as users read it."""
    return AuditEntry(
        number=entry.key,
        at=entry.at,
        actor=entry.actor,
        token_id=entry.token_id,
        action=entry.action,
        subject=entry.subject,
        change={name: plain_json(value) for name, value in entry.change.items()},
        chain_hash=entry.chain_hash.hex(),
    )


@router.get("/audit/verification")
async def verify_audit(backend: BackendDep, head: EarlierHead = None) -> AuditVerification:
    """Check every entry of the trail: a changed, missing, moved or cut one is found."""
    earlier = None if head is None else bytes.fromhex(head)
    found = await backend.read(lambda connection: access.verify_audit(connection, earlier_head=earlier))
    return audit_verification(found)


def audit_verification(found: Verification) -> AuditVerification:
    """The result as users read it."""
    return AuditVerification(
        is_whole=found.is_whole,
        entries=found.entries,
        head=found.head.hex(),
        broken_at=found.broken_at,
        is_cut=found.is_cut,
        knows_earlier_head=found.knows_earlier_head,
    )


browser_router = APIRouter(include_in_schema=False)


@browser_router.post("/logout", status_code=204)
async def log_out(request: Request) -> Response:
    """Delete the session's cookie in the browser. The token stays active."""
    sessions: BrowserSessions = request.app.state.sessions
    answer = Response(status_code=204, headers={"cache-control": "no-store"})
    answer.headers.append("set-cookie", sessions.end(secure=request.url.scheme == "https"))
    return answer
