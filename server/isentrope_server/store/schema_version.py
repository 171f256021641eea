"""Which migrations a database has seen, and which this program brings."""

from __future__ import annotations

from functools import cache

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from isentrope_server.store.migrate import alembic_config


def newest_version(connection: Connection) -> str | None:
    """The version of the newest migration there is."""
    return _newest(alembic_config(connection).get_main_option("script_location") or "")


def version_of(connection: Connection) -> str | None:
    """The version the database is at; None: it has no tables yet."""
    return MigrationContext.configure(connection).get_current_revision()


@cache
def _newest(scripts: str) -> str | None:
    return ScriptDirectory(scripts).get_current_head()
