"""Logging a browser out."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from isentrope_server.api.dependencies import PrincipalDep
from isentrope_server.security.browsers import ended_cookie
from isentrope_server.security.sessions import BrowserSessions

router = APIRouter(include_in_schema=False)


@router.post("/logout", status_code=204)
async def log_out(request: Request, principal: PrincipalDep) -> Response:
    """End the session in the browser's cookie, and what it has open. The token stays in force."""
    sessions: BrowserSessions = request.app.state.sessions
    await sessions.end(principal)
    answer = Response(status_code=204, headers={"cache-control": "no-store"})
    secure = request.url.scheme == "https"
    answer.headers.append("set-cookie", ended_cookie(sessions.cookie_name(secure=secure), secure=secure))
    return answer
