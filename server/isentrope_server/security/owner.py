"""The owner's token: made at the first start, kept in a private file of the home for local clients."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from isentrope_server.errors import StartupError
from isentrope_server.home import write_private
from isentrope_server.security.tokens import Scope, new_token, secret_hash
from isentrope_server.store import audit, tokens
from isentrope_server.store.events import TokensChanged
from isentrope_server.store.tokens import StoredToken
from isentrope_server.store.writer import Transaction

SHORTEST_OWNER_TOKEN = 4
"""Shorter ones are refused where they would become the owner's; one that is the owner's already goes on."""
GOOD_OWNER_TOKEN = 32
"""Shorter ones are warned of."""
MAKE_A_TOKEN = '`python -c "import secrets; print(secrets.token_urlsafe(32))"`'


def ensure_owner_token(transaction: Transaction, file: Path, chosen: str | None, *, is_shared: bool = False) -> str:
    """The owner's secret, from the file of an earlier start; else `chosen`, else a random one, written to the file.

    An owner's token whose file is gone is revoked: nobody can know it any more, or somebody took it. Not so in a
    database that servers share: each has a home, and an owner's token of its own or the one all were given.

    Raises:
        StartupError: the file can't be read or written, or the chosen token was revoked, or anybody could guess it.
    """
    connection = transaction.connection
    known = tokens.all_tokens(connection)
    in_force = [token for token in known if token.is_owner and token.revoked_at is None]
    try:
        kept = file.read_text(encoding="utf-8").strip() if file.exists() else ""
        if _is_among(in_force, kept):
            return kept
        if chosen is not None and _is_among(in_force, chosen):
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
        for token in [] if is_shared else in_force:
            tokens.revoke(connection, token.id, time.time())
        owner = new_token("owner", Scope.ADMIN, secret=chosen, is_owner=True)
        tokens.add(connection, owner.stored)
        audit.record(
            connection,
            at=owner.stored.created_at,
            actor="server",
            action="token.created",
            subject=f"tokens/{owner.stored.id}",
            change={
                "name": "owner",
                "scope": str(Scope.ADMIN),
                "revoked": [] if is_shared else [token.id for token in in_force],
            },
        )
        transaction.announce(TokensChanged())
        write_private(file, owner.secret + "\n")
    except StartupError:
        # It is an OSError too, and says what is wrong already.
        raise
    except OSError as error:
        raise StartupError(
            f"The owner's token file {file} must be readable and writable by this user: {error.strerror}. "
            "Change its permissions, or set ISENTROPE_HOME to another folder."
        ) from error
    return owner.secret


def _is_among(stored: Sequence[StoredToken], secret: str) -> bool:
    return any(token.token_hash == secret_hash(secret) for token in stored)
