"""Tokens: random secrets with a scope. The database knows their hashes, memory knows which are in force."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection

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

    def may(self, wanted: Scope) -> bool:
        return wanted in _GRANTS[self.scope]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token at the only moment its secret is known."""

    secret: str
    stored: StoredToken


def new_token(name: str, scope: Scope, *, secret: str | None = None, is_owner: bool = False) -> NewToken:
    """Make a token; `secret` only where somebody chose it already."""
    secret = secret or f"ise_{secrets.token_urlsafe(32)}"
    stored = StoredToken(
        id=secrets.token_hex(4),
        name=name,
        scope=scope,
        token_hash=token_hash(secret),
        created_at=time.time(),
        revoked_at=None,
        is_owner=is_owner,
    )
    return NewToken(secret=secret, stored=stored)


def token_hash(secret: str) -> bytes:
    """SHA-256: the secrets are 256 random bits, so a slow hash would only slow requests down."""
    return hashlib.sha256(secret.encode()).digest()


class TokenBook:
    """The tokens in force, looked up by hash on every request."""

    def __init__(self) -> None:
        self._principals: dict[bytes, Principal] = {}
        self._reloading = threading.Lock()

    def reload(self, connection: Connection) -> None:
        """Read the tokens anew; call it after every change, on a connection that has read nothing yet."""
        # One at a time: what was read before a token was revoked must not replace what was read after.
        with self._reloading:
            self.replace(tokens.all_tokens(connection))

    def replace(self, stored: Iterable[StoredToken]) -> None:
        self._principals = {
            token.token_hash: Principal(token_id=token.id, name=token.name, scope=Scope(token.scope))
            for token in stored
            if token.revoked_at is None
        }

    def of_secret(self, secret: str) -> Principal | None:
        """Whoever holds this secret. Comparing hashes leaks no timing that helps to guess a secret."""
        return self._principals.get(token_hash(secret)) if secret else None

    def of_authorization(self, header: str) -> Principal | None:
        """Whoever sends this `Authorization` value."""
        scheme, _, secret = header.partition(" ")
        return self.of_secret(secret.strip()) if scheme.lower() == "bearer" else None
