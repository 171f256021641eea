"""What other thresholds would have done to a step."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "what_if_sums",
        sa.Column("run_key", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("stream_key", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_key"], ["runs.key"], name=op.f("fk_what_if_sums_run_key_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_key", "position", name=op.f("pk_what_if_sums")),
    )
    with op.batch_alter_table("what_if_sums", schema=None) as batch_op:
        batch_op.create_index("ix_what_if_sums_run_key_step", ["run_key", "step"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("what_if_sums", schema=None) as batch_op:
        batch_op.drop_index("ix_what_if_sums_run_key_step")

    op.drop_table("what_if_sums")
