"""Tokens: random secrets with a scope. The database knows their hashes, memory knows which are in force."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection

from isentrope_server.errors import Unprocessable
from isentrope_server.store import tokens
from isentrope_server.store.tokens import StoredToken


class Scope(StrEnum):
    """What a token may do."""

    READ = "read"
    """See everything."""
    INGEST = "ingest"
    """Report runs, and nothing else: for machines that train."""
    CONTROL = "control"
    """Read, push controls, write tags and notes."""
    ADMIN = "admin"
    """All of it, and delete runs, and make tokens."""


_GRANTS: dict[Scope, frozenset[Scope]] = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.INGEST: frozenset({Scope.INGEST}),
    Scope.CONTROL: frozenset({Scope.READ, Scope.CONTROL}),
    Scope.ADMIN: frozenset(Scope),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Whoever holds a token in force."""

    token_id: str
    name: str
    scope: Scope
    run: str | None = None
    """The only run it may report, by id or name; None: any."""
    project: str | None = None
    """The only project whose runs it may report; None: any."""

    def may(self, wanted: Scope) -> bool:
        return wanted in _GRANTS[self.scope]

    @property
    def is_bound(self) -> bool:
        return self.run is not None or self.project is not None

    def may_report(self, run_id: str, name: str, project: str) -> bool:
        """Whether a run with this id, name and project is one it may report."""
        return self.run in (None, run_id, name) and self.project in (None, project)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token at the only moment its secret is known."""

    secret: str
    stored: StoredToken


def new_token(
    name: str,
    scope: Scope,
    *,
    run: str | None = None,
    project: str | None = None,
    secret: str | None = None,
    is_owner: bool = False,
) -> NewToken:
    """Make a token; `secret` only where somebody chose it already.

    Raises:
        Unprocessable: a run or a project for a token that doesn't report.
    """
    if (run is not None or project is not None) and scope is not Scope.INGEST:
        raise Unprocessable(
            f"Only a token of scope ingest can be bound to a run or a project; this one is of scope {scope}.",
            scope=str(scope),
        )
    secret = secret or f"ise_{secrets.token_urlsafe(32)}"
    stored = StoredToken(
        id=secrets.token_hex(4),
        name=name,
        scope=scope,
        token_hash=token_hash(secret),
        created_at=time.time(),
        revoked_at=None,
        is_owner=is_owner,
        run=run,
        project=project,
    )
    return NewToken(secret=secret, stored=stored)


def token_hash(secret: str) -> bytes:
    """SHA-256: the secrets are 256 random bits, so a slow hash would only slow requests down."""
    return hashlib.sha256(secret.encode()).digest()


class TokenBook:
    """The tokens in force, looked up by hash on every request. It may be asked from any thread."""

    def __init__(self) -> None:
        self._principals: dict[bytes, Principal] = {}
        self._in_force: frozenset[str] = frozenset()
        self._reloading = threading.Lock()
        self._lookups: dict[str, float] = {}
        self._on_change: list[Callable[[], None]] = []

    def reload(self, connection: Connection) -> None:
        """Read the tokens anew; call it after every change, on a connection that has read nothing yet."""
        # One at a time: what was read before a token was revoked must not replace what was read after.
        with self._reloading:
            self.replace(tokens.all_tokens(connection))

    def replace(self, stored: Iterable[StoredToken]) -> None:
        """Take these for the tokens there are, and tell who waits for a revocation."""
        principals = {
            token.token_hash: Principal(
                token_id=token.id,
                name=token.name,
                scope=Scope(token.scope),
                run=token.run,
                project=token.project,
            )
            for token in stored
            if token.revoked_at is None
        }
        self._principals, before = principals, self._in_force
        self._in_force = frozenset(principal.token_id for principal in principals.values())
        if before - self._in_force:
            for tell in list(self._on_change):
                tell()

    def is_in_force(self, token_id: str) -> bool:
        return token_id in self._in_force

    def on_revocation(self, tell: Callable[[], None]) -> None:
        """Have `tell` called, from any thread, whenever a token that was in force no longer is."""
        self._on_change.append(tell)

    def of_secret(self, secret: str) -> Principal | None:
        """Whoever holds this secret. Comparing hashes leaks no timing that helps to guess a secret."""
        principal = self._principals.get(token_hash(secret)) if secret else None
        if principal is not None:
            self._lookups[principal.token_id] = time.time()
        return principal

    def of_authorization(self, header: str) -> Principal | None:
        """Whoever sends this `Authorization` value."""
        scheme, _, secret = header.partition(" ")
        return self.of_secret(secret.strip()) if scheme.lower() == "bearer" else None

    def take_uses(self) -> dict[str, float]:
        """When tokens were used since the last call, by id."""
        uses, self._lookups = self._lookups, {}
        return uses
