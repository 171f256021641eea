"""The tokens that count most in a step, and alerts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "driving_tokens",
        sa.Column("run_key", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("stream_key", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_key"], ["runs.key"], name=op.f("fk_driving_tokens_run_key_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_key", "position", name=op.f("pk_driving_tokens")),
    )
    with op.batch_alter_table("driving_tokens", schema=None) as batch_op:
        batch_op.create_index("ix_driving_tokens_run_key_step", ["run_key", "step"], unique=False)
    op.create_table(
        "alerts",
        sa.Column("run_key", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("stream_key", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], name=op.f("fk_alerts_run_key_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_key", "position", "number", name=op.f("pk_alerts")),
    )


def downgrade() -> None:
    op.drop_table("alerts")
    with op.batch_alter_table("driving_tokens", schema=None) as batch_op:
        batch_op.drop_index("ix_driving_tokens_run_key_step")

    op.drop_table("driving_tokens")
