"""Access tokens: made, listed and revoked by whoever holds an admin token."""

from __future__ import annotations

import time

from fastapi import APIRouter, Response

from isentrope_server.api.dependencies import BackendDep, PrincipalDep
from isentrope_server.api.schemas import CreatedToken, Page, TokenOut, TokenRequest
from isentrope_server.errors import NotFound
from isentrope_server.security.bookkeeping import reload_tokens
from isentrope_server.security.issuing import issue_token, revoke_token
from isentrope_server.store import tokens

router = APIRouter(tags=["access tokens"])


@router.get("/access-tokens")
async def list_tokens(backend: BackendDep) -> Page[TokenOut]:
    """Every token, revoked ones too, without its secret."""
    return Page(items=[TokenOut.of(token) for token in await backend.read(tokens.all_tokens)], next_cursor=None)


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
    await reload_tokens(backend)
    return CreatedToken(**TokenOut.of(issued.stored).model_dump(), token=issued.secret)


@router.delete("/access-tokens/{token_id}", status_code=204)
async def delete_token(token_id: str, backend: BackendDep, principal: PrincipalDep) -> Response:
    """Revoke a token: from now on it opens nothing, and what it has open is closed."""
    revoked = await backend.write(
        lambda t: revoke_token(t, token_id, by=principal.name, by_token=principal.token_id, now=time.time())
    )
    if not revoked:
        raise NotFound(f"There is no token {token_id[:64]!r} in force.", token_id=token_id[:64])
    await reload_tokens(backend)
    return Response(status_code=204)
