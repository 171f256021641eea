"""Alembic's entry point: runs on the connection the server hands over."""

from __future__ import annotations

from alembic import context

from isentrope_server.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite can't alter a column in place; batches copy the table instead.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
