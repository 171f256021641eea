"""Entries of the audit trail say with which token somebody acted: names may repeat."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.add_column(sa.Column("token_id", sa.String(length=32), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.drop_column("token_id")
