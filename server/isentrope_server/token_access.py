"""Tokens and the audit trail for the command line: through the running server of the home, else in its database."""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Protocol, TypeVar
from urllib.parse import quote

import httpx

from isentrope_server.api.admin import access_token, audit_entry, audit_verification, created_token
from isentrope_server.backend import Backend, open_backend
from isentrope_server.errors import NotFound, Unprocessable
from isentrope_server.home import running_server_url
from isentrope_server.security.tokens import issue_token, revoke_token
from isentrope_server.settings import Settings
from isentrope_server.store import access
from isentrope_wire import environment
from isentrope_wire.answers import TokenScope
from isentrope_wire.errors import IsentropeError

_T = TypeVar("_T")
_ACTOR = "command line"


class TokenAccessError(IsentropeError, RuntimeError):
    """Tokens can't be read or changed here."""


class TokenAccess(Protocol):
    """What `isentrope token` and `isentrope audit` need."""

    @property
    def place(self) -> str:
        """The server or database the tokens belong to."""

    def create(self, scope: str, name: str, *, run: str | None = None, project: str | None = None) -> dict[str, object]:
        """Make a token.

        Raises:
            Unprocessable: a run or project for a token that doesn't report.
        """

    def list(self) -> list[dict[str, object]]:
        """Every token, without its secret."""

    def revoke(self, token_id: str) -> None:
        """Revoke a token.

        Raises:
            NotFound: no active token has this id.
        """

    def audit(self, limit: int) -> builtins.list[dict[str, object]]:
        """The newest entries of the audit trail, newest first."""

    def verify_audit(self, head: str | None) -> dict[str, object]:
        """Check the audit trail.

        Args:
            head: a hash that an earlier verification printed.
        """


def open_token_access(settings: Settings, *, makes_database: bool = False) -> TokenAccess:
    """Use the running server of the home, because SQLite may have one writing process; else the database.

    Args:
        makes_database: whether to make a database in a new home.

    Raises:
        TokenAccessError: the home has neither a server nor a database.
    """
    url = running_server_url(settings.home)
    if url is not None:
        return _ThroughServer(settings, url)
    meant = environment.url()
    if not settings.has_database and not (makes_database and environment.is_on_this_machine(meant)):
        raise TokenAccessError(
            f"There is no database at {settings.database_name}, and no server runs with the home {settings.home}. "
            + (
                "Set ISENTROPE_HOME to the server's home."
                if environment.is_on_this_machine(meant)
                else f"Tokens of {meant} are made where that server runs, with its ISENTROPE_HOME."
            )
        )
    return _InDatabase(settings)


class _InDatabase:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def place(self) -> str:
        return f"any server that starts with the database {self._settings.database_name}"

    def create(self, scope: str, name: str, *, run: str | None = None, project: str | None = None) -> dict[str, object]:
        async def work(backend: Backend) -> dict[str, object]:
            issued = await backend.write(
                lambda t: issue_token(t, name, TokenScope(scope), by=_ACTOR, now=time.time(), run=run, project=project)
            )
            return asdict(created_token(issued))

        return self._run(work)

    def list(self) -> list[dict[str, object]]:
        async def work(backend: Backend) -> list[dict[str, object]]:
            return [asdict(access_token(token)) for token in await backend.read(access.all_tokens)]

        return self._run(work)

    def revoke(self, token_id: str) -> None:
        async def work(backend: Backend) -> bool:
            return await backend.write(lambda t: revoke_token(t, token_id, by=_ACTOR, now=time.time()))

        if not self._run(work):
            raise NotFound(f"There is no active token {token_id!r}.")

    def audit(self, limit: int) -> builtins.list[dict[str, object]]:
        async def work(backend: Backend) -> builtins.list[dict[str, object]]:
            found = await backend.read(lambda connection: access.audit_page(connection, before_key=None, limit=limit))
            return [asdict(audit_entry(entry)) for entry in found]

        return self._run(work)

    def verify_audit(self, head: str | None) -> dict[str, object]:
        earlier = None if head is None else bytes.fromhex(head)

        async def work(backend: Backend) -> dict[str, object]:
            found = await backend.read(lambda connection: access.verify_audit(connection, earlier_head=earlier))
            return asdict(audit_verification(found))

        return self._run(work)

    def _run(self, work: Callable[[Backend], Awaitable[_T]]) -> _T:
        async def run() -> _T:
            async with open_backend(self._settings) as backend:
                return await work(backend)

        return asyncio.run(run())


class _ThroughServer:
    def __init__(self, settings: Settings, url: str) -> None:
        self._settings = settings
        self._url = url

    @property
    def place(self) -> str:
        return f"the server at {self._url}, whose home is {self._settings.home}"

    def create(self, scope: str, name: str, *, run: str | None = None, project: str | None = None) -> dict[str, object]:
        wanted = {"scope": scope, "name": name, "run": run, "project": project}
        created: dict[str, object] = self._request("POST", "access-tokens", wanted).json()
        return created

    def list(self) -> list[dict[str, object]]:
        items: list[dict[str, object]] = self._request("GET", "access-tokens").json()["items"]
        return items

    def revoke(self, token_id: str) -> None:
        self._request("DELETE", f"access-tokens/{quote(token_id, safe='')}")

    def audit(self, limit: int) -> builtins.list[dict[str, object]]:
        items: builtins.list[dict[str, object]] = self._request("GET", f"audit?limit={limit}").json()["items"]
        return items

    def verify_audit(self, head: str | None) -> dict[str, object]:
        found: dict[str, object] = self._request(
            "GET", "audit/verification" + ("" if head is None else f"?head={head}")
        ).json()
        return found

    def _request(self, method: str, path: str, body: dict[str, str | None] | None = None) -> httpx.Response:
        try:
            secret = self._settings.owner_token_file.read_text(encoding="utf-8").strip()
            answer = httpx.request(
                method,
                f"{self._url}/api/v1/{path}",
                json=body,
                headers={"Authorization": f"Bearer {secret}"},
                trust_env=False,
            )
        except (OSError, httpx.HTTPError) as error:
            raise TokenAccessError(f"The server at {self._url} can't be asked: {error}.") from error
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise NotFound(answer.json()["error"]["message"])
        if answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY:
            raise Unprocessable(answer.json()["error"]["message"])
        if answer.is_error:
            raise TokenAccessError(f"The server at {self._url} refused: {answer.text[:300]}")
        return answer
