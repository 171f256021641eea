"""Browsers hold a session of their own instead of the token, under a cookie's name of this database's own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "browser_sessions",
        sa.Column("session_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("token_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name=op.f("fk_browser_sessions_token_id_tokens"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_hash", name=op.f("pk_browser_sessions")),
    )
    op.create_index(op.f("ix_browser_sessions_token_id"), "browser_sessions", ["token_id"], unique=False)
    op.create_table(
        "session_cookie",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("suffix", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_session_cookie")),
    )


def downgrade() -> None:
    op.drop_table("session_cookie")
    op.drop_table("browser_sessions")
