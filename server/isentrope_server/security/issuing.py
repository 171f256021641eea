"""Making and revoking tokens, each with its audit entry."""

from __future__ import annotations

from isentrope_server.security.token_names import check_token_name
from isentrope_server.security.tokens import NewToken, Scope, new_token
from isentrope_server.store import audit, tokens
from isentrope_server.store.events import TokensChanged
from isentrope_server.store.writer import Transaction


def issue_token(
    transaction: Transaction,
    name: str,
    scope: Scope,
    *,
    by: str,
    by_token: str | None = None,
    now: float,
    run: str | None = None,
    project: str | None = None,
) -> NewToken:
    """Make and store a token; only the returned object knows its secret.

    Args:
        by: name of the token, or `command line`.
        by_token: id of the token.
    Raises:
        Unprocessable: a name somebody else has, or a run or a project for a token that doesn't report.
    """
    check_token_name(name)
    issued = new_token(name, scope, run=run, project=project)
    tokens.add(transaction.connection, issued.stored)
    audit.record(
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
    """True when the token was in force until now."""
    revoked = tokens.revoke(transaction.connection, token_id, now)
    if revoked:
        audit.record(
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
