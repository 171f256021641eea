"""Tokens may be bound to a run or a project and tell when they were used; the audit trail knows its newest entry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.add_column(sa.Column("run", sa.String(length=128), nullable=True))
        batch_op.add_column(sa.Column("project", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("last_used_at", sa.Double(), nullable=True))
    head = op.create_table(
        "audit_head",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("chain_hash", sa.LargeBinary(length=32), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_audit_head")),
    )
    connection = op.get_bind()
    audit = sa.table("audit", sa.column("key", sa.BigInteger()), sa.column("chain_hash", sa.LargeBinary()))
    entries = connection.execute(sa.select(sa.func.count()).select_from(audit)).scalar_one()
    newest = connection.execute(sa.select(audit.c.chain_hash).order_by(audit.c.key.desc()).limit(1)).scalar()
    op.bulk_insert(head, [{"key": 1, "entries": entries, "chain_hash": newest or b""}])


def downgrade() -> None:
    op.drop_table("audit_head")
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.drop_column("last_used_at")
        batch_op.drop_column("project")
        batch_op.drop_column("run")
