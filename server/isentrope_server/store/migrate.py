"""Brings a database to the newest schema."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from isentrope_server.store.locks import hold_for_migration

_MIGRATIONS = Path(__file__).parent / "migrations"


def alembic_config(connection: Connection) -> Config:
    """Alembic's configuration without an ini file: the migrations of this package, on this connection."""
    config = Config()
    # Alembic reads % as interpolation.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection) -> None:
    """Run every migration the database hasn't seen, in the caller's transaction.

    Raises:
        alembic.util.CommandError: a newer Isentrope has migrated it already.
    """
    hold_for_migration(connection)
    command.upgrade(alembic_config(connection), "head")
