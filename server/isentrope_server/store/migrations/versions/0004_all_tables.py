"""Every table, as `store.tables` describes it. Tables that change need a new revision id: no id is
used twice."""

from __future__ import annotations

from alembic import op

from isentrope_server.store.tables import metadata

revision = "0004"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
