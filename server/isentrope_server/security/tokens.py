"""Tokens: random secrets with a scope. The database has their hashes, memory the active ones.

A token's name is shown beside every change made with it, so it must not look like another actor. Making and revoking a
token each have an audit entry. The owner's token is made at the first start and stored in a private file of the home
for local clients.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from isentrope_server.errors import StartupError, Unprocessable
from isentrope_server.home import write_private
from isentrope_server.store import access
from isentrope_server.store.access import StoredToken
from isentrope_server.store.writer import TokensChanged, Transaction
from isentrope_wire.answers import TokenScope

_GRANTS: dict[TokenScope, frozenset[TokenScope]] = {
    TokenScope.READ: frozenset({TokenScope.READ}),
    TokenScope.INGEST: frozenset({TokenScope.INGEST}),
    TokenScope.CONTROL: frozenset({TokenScope.READ, TokenScope.CONTROL}),
    TokenScope.ADMIN: frozenset(TokenScope),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The holder of an active token, or of a browser's session that began with one."""

    token_id: str
    name: str
    scope: TokenScope
    run: str | None = None
    """The only run it may report, by id or name; None: any."""
    project: str | None = None
    """The only project whose runs it may report; None: any."""
    is_owner: bool = False
    """Whether it is the owner's token of a server's home."""

    def may(self, wanted: TokenScope) -> bool:
        """Whether the token has a scope."""
        return wanted in _GRANTS[self.scope]

    @property
    def is_bound(self) -> bool:
        """Whether it may report only one run or project."""
        return self.run is not None or self.project is not None

    def may_report(self, run_id: str, name: str, project: str) -> bool:
        """Whether it may report a run with this id, name and project."""
        return self.run in (None, run_id, name) and self.project in (None, project)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A new token; its secret is not stored."""

    secret: str
    stored: StoredToken


def new_token(
    name: str,
    scope: TokenScope,
    *,
    run: str | None = None,
    project: str | None = None,
    secret: str | None = None,
    is_owner: bool = False,
) -> NewToken:
    """Make a token.

    Args:
        run: the only run it may report, by id or name.
        project: the only project whose runs it may report.
        secret: chosen by a person; None: random.

    Raises:
        Unprocessable: a run or a project for a token that doesn't report.
    """
    if (run is not None or project is not None) and scope is not TokenScope.INGEST:
        raise Unprocessable(
            f"Only a token of scope ingest can be bound to a run or a project; this one is of scope {scope}.",
            scope=str(scope),
        )
    secret = secret or f"ise_{secrets.token_urlsafe(32)}"
    stored = StoredToken(
        id=secrets.token_hex(4),
        name=name,
        scope=scope,
        token_hash=secret_hash(secret),
        created_at=time.time(),
        revoked_at=None,
        is_owner=is_owner,
        run=run,
        project=project,
    )
    return NewToken(secret=secret, stored=stored)


def secret_hash(secret: str) -> bytes:
    """SHA-256: secrets are 256 random bits, so a slow hash would not help."""
    return hashlib.sha256(secret.encode()).digest()


class TokenBook:
    """The active tokens, looked up on every request. May be used from any thread."""

    def __init__(self) -> None:
        self._by_hash: dict[bytes, Principal] = {}
        self._by_id: dict[str, Principal] = {}
        self._reloading = threading.Lock()
        self._last_uses: dict[str, float] = {}

    def reload(self, connection: Connection) -> None:
        """Read the tokens again; call it after every change, on a connection that has read nothing yet."""
        # One at a time: what was read before a token was revoked must not replace what was read after.
        with self._reloading:
            self.replace(access.all_tokens(connection))

    def replace(self, stored: Iterable[StoredToken]) -> None:
        """Use these tokens instead of those known until now."""
        active = {
            token.token_hash: Principal(
                token_id=token.id,
                name=token.name,
                scope=TokenScope(token.scope),
                run=token.run,
                project=token.project,
                is_owner=token.is_owner,
            )
            for token in stored
            if token.revoked_at is None
        }
        self._by_hash = active
        self._by_id = {principal.token_id: principal for principal in active.values()}

    def is_active(self, principal: Principal) -> bool:
        """Whether the token has not been revoked."""
        return principal.token_id in self._by_id

    def of_secret(self, secret: str) -> Principal | None:
        """The active token with this secret. Comparing hashes leaks no timing that helps to guess it."""
        return self._used(self._by_hash.get(secret_hash(secret)) if secret else None)

    def of_id(self, token_id: str) -> Principal | None:
        """The active token with this id, for a session that was begun with it."""
        return self._used(self._by_id.get(token_id))

    def of_authorization(self, header: str) -> Principal | None:
        """The active token in an `Authorization` header."""
        scheme, _, secret = header.partition(" ")
        return self.of_secret(secret.strip()) if scheme.lower() == "bearer" else None

    def take_uses(self) -> dict[str, float]:
        """Return and reset when tokens were used, by id."""
        uses, self._last_uses = self._last_uses, {}
        return uses

    def _used(self, principal: Principal | None) -> Principal | None:
        if principal is not None:
            self._last_uses[principal.token_id] = time.time()
        return principal


_OTHER_ACTORS = re.compile(r"owner|server|command line|rank( .*)?|run( \(.*)?")


def check_token_name(name: str) -> None:
    """Check the name of a new token.

    Raises:
        Unprocessable: invisible characters, or the name of another actor in the audit trail and the history of
            controls.
    """
    if not name.isprintable():
        raise Unprocessable(f"A token's name must have visible characters and spaces only, got {name!r}.", field="name")
    # Names that look the same are equal: wide letters, capitals, repeated spaces.
    looks_like = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    if not looks_like or _OTHER_ACTORS.fullmatch(looks_like):
        raise Unprocessable(
            f"A token's name can't be blank, owner, server, command line, run or rank, which name others in the audit "
            f"trail, got {name!r}. Choose another.",
            field="name",
        )


def issue_token(
    transaction: Transaction,
    name: str,
    scope: TokenScope,
    *,
    by: str,
    by_token: str | None = None,
    now: float,
    run: str | None = None,
    project: str | None = None,
) -> NewToken:
    """Make and store a token; only the returned object has its secret.

    Args:
        by: name of the token, or `command line`.
        by_token: id of that token.
        now: the server's time, seconds since the epoch.
        run: the only run it may report, by id or name.
        project: the only project whose runs it may report.

    Raises:
        Unprocessable: the name of another actor, or a run or a project for a token that doesn't report.
    """
    check_token_name(name)
    issued = new_token(name, scope, run=run, project=project)
    access.add_token(transaction.connection, issued.stored)
    access.record_audit(
        transaction.connection,
        at=now,
        actor=by,
        token_id=by_token,
        action="token.created",
        subject=f"tokens/{issued.stored.id}",
        change={"name": name, "scope": str(scope), "run": run, "project": project},
    )
    transaction.announce(TokensChanged())
    return issued


def revoke_token(transaction: Transaction, token_id: str, *, by: str, by_token: str | None = None, now: float) -> bool:
    """Revoke a token; return whether it was active until now.

    Args:
        by: name of the token that revokes, or `command line`.
        by_token: id of that token.
        now: the server's time, seconds since the epoch.
    """
    revoked = access.revoke_token(transaction.connection, token_id, now)
    if revoked:
        access.record_audit(
            transaction.connection,
            at=now,
            actor=by,
            token_id=by_token,
            action="token.revoked",
            subject=f"tokens/{token_id}",
            change={},
        )
        transaction.announce(TokensChanged())
    return revoked


SHORTEST_OWNER_TOKEN = 4
"""Characters; a shorter one is refused at the first start."""
GOOD_OWNER_TOKEN = 32
"""Characters; the log warns of a shorter one."""
MAKE_A_TOKEN = '`python -c "import secrets; print(secrets.token_urlsafe(32))"`'


def ensure_owner_token(transaction: Transaction, file: Path, chosen: str | None, *, is_shared: bool = False) -> str:
    """Return the owner's secret: from the file of an earlier start, else `chosen`, else a random one, and write the
    file.

    An owner's token whose file is missing is revoked, except in a database that servers share: there each home has its
    own owner's token, or all have the same.

    Args:
        file: the owner's token in the home.
        chosen: ISENTROPE_TOKEN.
        is_shared: whether several servers may use the database.

    Raises:
        StartupError: the file can't be read or written, or the chosen token was revoked or is too short.
    """
    connection = transaction.connection
    known = access.all_tokens(connection)
    active = [token for token in known if token.is_owner and token.revoked_at is None]
    try:
        kept = file.read_text(encoding="utf-8").strip() if file.exists() else ""
        if _is_among(active, kept):
            return kept
        if chosen is not None and _is_among(active, chosen):
            write_private(file, chosen + "\n")
            return chosen
        if chosen is not None and _is_among(known, chosen):
            raise StartupError(
                "ISENTROPE_TOKEN is a token that was revoked, or one that is not an owner's. Choose another."
            )
        if chosen is not None and len(chosen) < SHORTEST_OWNER_TOKEN:
            raise StartupError(
                f"ISENTROPE_TOKEN becomes the owner's token and must have at least {SHORTEST_OWNER_TOKEN} characters, "
                f"better {GOOD_OWNER_TOKEN}, got {len(chosen)}. Make one with {MAKE_A_TOKEN}."
            )
        for token in [] if is_shared else active:
            access.revoke_token(connection, token.id, time.time())
        owner = new_token("owner", TokenScope.ADMIN, secret=chosen, is_owner=True)
        access.add_token(connection, owner.stored)
        access.record_audit(
            connection,
            at=owner.stored.created_at,
            actor="server",
            action="token.created",
            subject=f"tokens/{owner.stored.id}",
            change={
                "name": "owner",
                "scope": str(TokenScope.ADMIN),
                "revoked": [] if is_shared else [token.id for token in active],
            },
        )
        transaction.announce(TokensChanged())
        write_private(file, owner.secret + "\n")
    except StartupError:
        # StartupError is an OSError, too.
        raise
    except OSError as error:
        raise StartupError(
            f"The owner's token file {file} must be readable and writable by this user: {error.strerror}. "
            "Change its permissions, or set ISENTROPE_HOME to another folder."
        ) from error
    return owner.secret


def _is_among(stored: Sequence[StoredToken], secret: str) -> bool:
    return any(token.token_hash == secret_hash(secret) for token in stored)
