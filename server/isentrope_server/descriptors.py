"""File descriptors. Each connection costs one, and the database and the files need theirs whoever connects."""

from __future__ import annotations

import contextlib
import logging
import resource
from dataclasses import dataclass

_log = logging.getLogger(__name__)

ENOUGH = 65_536
"""More are not asked for: no share below grows any further."""
FEW = 4_096
"""Below it the log says so: thousands of ranks would not find a place."""
RESERVE = 256
"""For the database, files, and what the server opens itself."""
HTTP_CONNECTIONS = 2_000
GRPC_CONNECTIONS = 16_000
"""A rank has one."""


@dataclass(frozen=True, slots=True)
class Shares:
    """How many connections a port may hold open at once; more are closed."""

    http: int
    """Of each HTTP port: with TLS there are two."""
    grpc: int


def raise_limit() -> None:
    """Let this process open as many files as the system allows it, and say in the log when that is few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # macOS promises more than it gives.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    limit = _limit()
    if limit < FEW:
        shares = shares_of(limit)
        _log.warning(
            "The system lets this server open %d files, %d are recommended: it takes %d connections of trainers and %d "
            "of browsers at once. Raise it with `ulimit -Hn` or, for a service, LimitNOFILE.",
            limit,
            FEW,
            shares.grpc,
            shares.http,
        )


def shares() -> Shares:
    """Of what this process may open now."""
    return shares_of(_limit())


def shares_of(limit: int) -> Shares:
    """All ports full leave the reserve, or half of what there is where that is less."""
    free = max(limit - RESERVE, limit // 2)
    http = max(1, min(HTTP_CONNECTIONS, free // 4))
    return Shares(http=http, grpc=max(1, min(GRPC_CONNECTIONS, free - 2 * http)))


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ENOUGH if soft == resource.RLIM_INFINITY else soft
