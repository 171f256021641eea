"""Tokens: random secrets with a scope. The database has their hashes, memory the active ones.

A token's name is shown beside every change made with it, so it must not look like another actor.
Making and revoking a token each have an audit entry. The owner's token is made at the first start
and stored in a private file of the home for local clients.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
import unicodedata
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from isentrope_server.errors import StartupError, Unprocessable
from isentrope_server.home import write_private
from isentrope_server.store import access
from isentrope_server.store.access import Principal, secret_hash
from isentrope_server.store.writer import TokensChanged, Transaction
from isentrope_wire.answers import CreatedToken, TokenScope

FREE_GUESSES = 10
"""Wrong tokens of an address that are answered at once, until it sends none for a minute."""
GUESS_SECONDS, LONGEST_WAIT = 1.0, 60.0
"""The later ones are answered one after another, so far apart, after this time at the latest:
however many connections an address has."""
_FORGOTTEN_SECONDS = 60.0
_ADDRESSES = 10_000
_MOST_REFUSED = 1_000
"""Runs whose trainers are refused, kept until the next second."""


@dataclass(slots=True)
class _Guesses:
    """Wrong tokens of one address."""

    count: int = 0
    last: float = 0.0
    answered_at: float = 0.0
    """When the newest one is answered."""


class TokenBook:
    """The active tokens, looked up on every request. May be used from any thread, but for
    `guessed`."""

    def __init__(self) -> None:
        self._guesses: OrderedDict[str, _Guesses] = OrderedDict()
        self._by_hash: dict[bytes, Principal] = {}
        self._by_id: dict[str, Principal] = {}
        self._revoked: dict[bytes, str] = {}
        self._refused: dict[str, str] = {}
        self._reloading = threading.Lock()
        self._last_uses: dict[str, float] = {}

    def reload(self, connection: Connection) -> None:
        """Read the tokens again; call it after every change, on a connection that has read nothing
        yet."""
        # One at a time: what was read before a token was revoked must not replace what was read
        # after.
        with self._reloading:
            self._by_hash = access.active_principals(connection)
            self._by_id = {principal.token_id: principal for principal in self._by_hash.values()}
            self._revoked = access.revoked_names(connection)

    def find_by_secret(self, secret: str) -> Principal | None:
        """The active token with this secret. Comparing hashes leaks no timing that helps to guess
        it."""
        return self._used(self._by_hash.get(secret_hash(secret)) if secret else None)

    def find_by_id(self, token_id: str) -> Principal | None:
        """The active token with this id, for a session that was begun with it."""
        return self._used(self._by_id.get(token_id))

    def find_by_header(self, header: str) -> Principal | None:
        """The active token in an `Authorization` header."""
        scheme, _, secret = header.partition(" ")
        if scheme.lower() == "bearer":
            return self.find_by_secret(secret.strip())
        return None

    async def guessed(self, address: str) -> None:
        """Count a wrong token, and wait before it is answered where its sender has tried many.
        Right ones never wait."""
        guesses = self._guesses.pop(address, None)
        now = time.monotonic()
        if guesses is None or now - guesses.last > _FORGOTTEN_SECONDS:
            guesses = _Guesses()
        guesses.count += 1
        guesses.last = now
        self._guesses[address] = guesses
        if len(self._guesses) > _ADDRESSES:
            self._guesses.popitem(last=False)
        if guesses.count > FREE_GUESSES:
            guesses.answered_at = max(now, guesses.answered_at) + GUESS_SECONDS
            await asyncio.sleep(min(guesses.answered_at - now, LONGEST_WAIT))

    def note_refused(self, header: str, run_id: str) -> None:
        """Keep that who reports a run has a token that was revoked. One that is only wrong says
        nothing: anybody can send it."""
        name = self._revoked.get(secret_hash(header.partition(" ")[2].strip()))
        if name is not None and run_id and len(self._refused) < _MOST_REFUSED:
            self._refused[run_id] = name

    def take_refused(self) -> dict[str, str]:
        """Return and reset the runs whose trainers were refused, with their tokens' names."""
        refused, self._refused = self._refused, {}
        return refused

    def take_uses(self) -> dict[str, float]:
        """Return and reset when tokens were used, by id."""
        uses, self._last_uses = self._last_uses, {}
        return uses

    def _used(self, principal: Principal | None) -> Principal | None:
        if principal is not None:
            self._last_uses[principal.token_id] = time.time()
        return principal


_OTHER_ACTORS = re.compile(r"owner|server|rank( .*)?|run( \(.*)?")


def check_token_name(name: str) -> None:
    """Check the name of a new token. Unprocessable: it has invisible characters, or is the name of
    another actor in the audit trail and the history of controls."""
    if not name.isprintable():
        raise Unprocessable(
            f"A token's name must have visible characters and spaces only, got {name!r}.",
            field="name",
        )
    # Names that look the same are equal: wide letters, capitals, repeated spaces.
    looks_like = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    if not looks_like or _OTHER_ACTORS.fullmatch(looks_like):
        raise Unprocessable(
            "A token's name can't be blank, owner, server, run or rank, which name others in the"
            f" audit trail, got {name!r}. Choose another.",
            field="name",
        )


def issue_token(
    transaction: Transaction, name: str, scope: TokenScope, *, by: Principal
) -> CreatedToken:
    """Make and store a token; only the returned object has its secret. Unprocessable: as
    `check_token_name`."""
    check_token_name(name)
    made = access.add_token(transaction.connection, name, scope)
    change = {"name": name, "scope": str(scope)}
    access.record_audit(
        transaction.connection, by, "token.created", f"tokens/{made.id}", change, made.created_at
    )
    transaction.announce(TokensChanged())
    return made


def revoke_token(transaction: Transaction, token_id: str, *, by: Principal, now: float) -> bool:
    """Revoke a token; return whether it was active until now."""
    revoked = access.revoke_token(transaction.connection, token_id, now)
    if revoked:
        access.record_audit(
            transaction.connection, by, "token.revoked", f"tokens/{token_id}", {}, now
        )
        transaction.announce(TokensChanged())
    return revoked


SHORTEST_OWNER_TOKEN = 8
"""Characters; a shorter one is refused at the first start."""
GOOD_OWNER_TOKEN = 32
"""Characters; the log warns of a shorter one."""
MAKE_A_TOKEN = '`python -c "import secrets; print(secrets.token_urlsafe(32))"`'


def ensure_owner_token(
    transaction: Transaction, file: Path, chosen: str | None, *, is_shared: bool = False
) -> str:
    """Return the owner's secret: from the file of an earlier start, else `chosen`
    (ISENTROPE_TOKEN), else a random one, and write the file.

    An owner's token whose file is missing is revoked, except in a database that servers share:
    there each home has its own owner's token, or all have the same. StartupError: the file can't be
    read or written, or the chosen token was revoked or is too short.
    """
    connection = transaction.connection
    owners = {
        key: one.token_id
        for key, one in access.active_principals(connection).items()
        if one.is_owner
    }
    try:
        kept = ""
        if file.exists():
            kept = file.read_text(encoding="utf-8").strip()
        if secret_hash(kept) in owners:
            return kept
        if chosen is not None and secret_hash(chosen) in owners:
            write_private(file, chosen + "\n")
            return chosen
        if chosen is not None:
            _check_chosen(connection, chosen)
        if is_shared:
            replaced = []
        else:
            replaced = list(owners.values())
        for token_id in replaced:
            access.revoke_token(connection, token_id, time.time())
        owner = access.add_token(
            connection, "owner", TokenScope.ADMIN, secret=chosen, is_owner=True
        )
        change = {"name": "owner", "scope": str(TokenScope.ADMIN), "revoked": replaced}
        access.record_audit(
            connection, "server", "token.created", f"tokens/{owner.id}", change, owner.created_at
        )
        transaction.announce(TokensChanged())
        write_private(file, owner.token + "\n")
    except OSError as error:
        raise StartupError(
            f"The owner's token file {file} must be readable and writable by this user:"
            f" {error.strerror}. Change its permissions, or set ISENTROPE_HOME to another folder."
        ) from error
    return owner.token


def _check_chosen(connection: Connection, chosen: str) -> None:
    if access.is_known_secret(connection, chosen):
        raise StartupError(
            "ISENTROPE_TOKEN is a token that was revoked, or one that is not an owner's. Choose"
            " another."
        )
    if len(chosen) < SHORTEST_OWNER_TOKEN:
        raise StartupError(
            "ISENTROPE_TOKEN becomes the owner's token and must have at least"
            f" {SHORTEST_OWNER_TOKEN} characters, better {GOOD_OWNER_TOKEN}, got {len(chosen)}."
            f" Make one with {MAKE_A_TOKEN}."
        )
