"""Deleting a layout or a stream looks at no other rows: what refers to them goes with its run, and is gone by then.

For each layout that nobody used any more the database looked through all records, for each stream through all outcomes.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("records", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_records_layout_key_layouts"), type_="foreignkey")
    with op.batch_alter_table("control_outcomes", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_control_outcomes_stream_key_streams"), type_="foreignkey")


def downgrade() -> None:
    with op.batch_alter_table("control_outcomes", schema=None) as batch_op:
        batch_op.create_foreign_key(
            batch_op.f("fk_control_outcomes_stream_key_streams"), "streams", ["stream_key"], ["key"], ondelete="CASCADE"
        )
    with op.batch_alter_table("records", schema=None) as batch_op:
        batch_op.create_foreign_key(batch_op.f("fk_records_layout_key_layouts"), "layouts", ["layout_key"], ["key"])
