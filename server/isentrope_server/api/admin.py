"""Administration: who asks, access tokens, the audit trail, and a browser's log-out."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from isentrope_server.alerting import destinations, send_tests
from isentrope_server.api.dependencies import (
    BackendDep,
    Body,
    Limit,
    PrincipalDep,
    RunDep,
    page_after,
    page_of,
)
from isentrope_server.errors import NotFound
from isentrope_server.security.sessions import BrowserSessions
from isentrope_server.security.tokens import issue_token, revoke_token
from isentrope_server.store import access
from isentrope_wire.answers import (
    AccessToken,
    AuditEntry,
    CreatedToken,
    Destination,
    Me,
    Page,
    TokenScope,
)
from isentrope_wire.numbers import part_of

router = APIRouter(tags=["administration"])

TOKEN_NAME_CHARACTERS = 128


class TokenRequest(Body):
    """The token to make."""

    scope: TokenScope
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=TOKEN_NAME_CHARACTERS,
        description="Author of every change made with it; null: the scope.",
    )


@router.get("/me")
async def get_me(request: Request, principal: PrincipalDep, backend: BackendDep) -> Me:
    """The token that this request was made with, or the one that the browser logged in with."""
    restored = await backend.read(access.newest_restore)
    return part_of(Me, principal, is_session=request.state.is_session, restored=restored)


@router.get("/access-tokens")
async def list_tokens(backend: BackendDep) -> Page[AccessToken]:
    """Every token, revoked ones too, without its secret."""
    return Page(items=await backend.read(access.all_tokens), next_cursor=None)


@router.post("/access-tokens", status_code=201)
async def create_token(
    request: TokenRequest, backend: BackendDep, principal: PrincipalDep
) -> CreatedToken:
    """Make a token. Its secret is in this answer and nowhere else."""
    name = request.name or str(request.scope)
    made = await backend.write(lambda t: issue_token(t, name, request.scope, by=principal))
    await backend.reload_tokens()
    return made


@router.post("/runs/{run_id}/link", status_code=201)
async def create_link(
    request: Request, run: RunDep, backend: BackendDep, principal: PrincipalDep
) -> CreatedToken:
    """Make a token that logs a browser in, as `/?token=...`, to read this run and no other; as a
    bearer token it opens nothing.

    Revoke it like any other token.
    """
    sessions: BrowserSessions = request.app.state.sessions
    name = f"link to {run.id}"[:TOKEN_NAME_CHARACTERS]
    made = await backend.write(lambda t: issue_token(t, name, TokenScope.READ, by=principal))
    await backend.reload_tokens()
    # The secret of the token itself, which would open all runs, is given to nobody.
    return replace(made, token=sessions.link(made.id, run.id))


@router.delete("/access-tokens/{token_id}", status_code=204)
async def delete_token(token_id: str, backend: BackendDep, principal: PrincipalDep) -> Response:
    """Revoke a token: requests with it are refused from now on; requests that have begun run to
    their end."""
    revoked = await backend.write(
        lambda t: revoke_token(t, token_id, by=principal, now=time.time())
    )
    if not revoked:
        raise NotFound(f"There is no active token {token_id[:64]!r}.", token_id=token_id[:64])
    await backend.reload_tokens()
    return Response(status_code=204)


@router.get("/notify")
async def list_destinations(backend: BackendDep) -> Page[Destination]:
    """Where alerts are sent, without the addresses."""
    return Page(items=destinations(backend.settings), next_cursor=None)


@router.post("/notify/test")
async def test_destinations(backend: BackendDep) -> Page[Destination]:
    """Send a word to every destination. Waits for each at most ten seconds."""
    return Page(items=await send_tests(backend.settings), next_cursor=None)


@router.get("/audit")
async def list_audit(
    backend: BackendDep,
    cursor: str | None = None,
    limit: Limit = 50,
    run: Annotated[
        str | None, Query(max_length=128, description="Only changes of this run and its control.")
    ] = None,
) -> Page[AuditEntry]:
    """Every change of controls, runs and tokens, newest first."""
    before = page_after(cursor, 1)
    found = await backend.read(
        lambda c: access.audit_page(c, before=before, limit=limit + 1, run_id=run)
    )
    return page_of([((entry.number,), entry) for entry in found], limit)


browser_router = APIRouter(include_in_schema=False)


@browser_router.post("/logout", status_code=204)
async def log_out(request: Request) -> Response:
    """Delete the session's cookie in the browser. The token stays active."""
    sessions: BrowserSessions = request.app.state.sessions
    answer = Response(status_code=204, headers={"cache-control": "no-store"})
    answer.headers.append("set-cookie", sessions.end(secure=request.url.scheme == "https"))
    answer.headers.append("set-cookie", sessions.trial)
    return answer
