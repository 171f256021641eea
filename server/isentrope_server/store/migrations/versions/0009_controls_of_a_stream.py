"""A stream knows what it began under, and the highest control version its reports named.

So each life of a run is shown under its own control, and no number is given out twice.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("streams", sa.Column("control_version", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("streams", sa.Column("initial_control", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("streams", "initial_control")
    op.drop_column("streams", "control_version")
