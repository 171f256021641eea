"""Every table of the first version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("key", _KEY, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("change", sa.JSON(), nullable=False),
        sa.Column("chain_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("token_id", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_subject"), "audit", ["subject"], unique=False)
    op.create_table(
        "audit_head",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("chain_hash", sa.LargeBinary(length=32), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_audit_head")),
    )
    op.create_table(
        "deleted_runs",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=False),
        sa.Column("deleted_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deleted_runs")),
    )
    op.create_table(
        "layouts",
        sa.Column("key", _KEY, nullable=False),
        sa.Column("digest", sa.LargeBinary(length=16), nullable=False),
        sa.Column("names", sa.JSON(), nullable=False),
        sa.Column("histograms", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_layouts")),
        sa.UniqueConstraint("digest", name=op.f("uq_layouts_digest")),
    )
    op.create_table(
        "runs",
        sa.Column("key", _KEY, nullable=False),
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("given_name", sa.Text(), nullable=True),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("planned_steps", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_report_at", sa.Double(), nullable=True),
        sa.Column("last_heard_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("probe_version", sa.Text(), nullable=False),
        sa.Column("capabilities", sa.JSON(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("control_version", sa.BigInteger(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.Column("timeline_version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_runs")),
        sa.UniqueConstraint("id", name=op.f("uq_runs_id")),
    )
    op.create_index(op.f("ix_runs_project"), "runs", ["project"], unique=False)
    op.create_table(
        "session_key",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("secret", sa.LargeBinary(length=32), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_session_key")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("is_owner", sa.Boolean(), nullable=False),
        sa.Column("run", sa.String(length=128), nullable=True),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_tokens_token_hash")),
    )
    op.create_table(
        "alerts",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("stream_key", _KEY, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("level", sa.String(length=8), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("cause", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("suggestion", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], name=op.f("fk_alerts_run_key_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_key", "position", "number", name=op.f("pk_alerts")),
    )
    op.create_table(
        "notified",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("level", sa.String(length=8), nullable=False),
        sa.Column("destination", sa.String(length=32), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("tried_at", sa.Double(), nullable=False),
        sa.Column("sent", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], name=op.f("fk_notified_run_key_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_key", "kind", "level", "destination", name=op.f("pk_notified")),
    )
    op.create_table(
        "blocks",
        sa.Column("key", _KEY, nullable=False),
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("stream_key", _KEY, nullable=False),
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("reports", sa.Integer(), nullable=False),
        sa.Column("packed_positions", sa.LargeBinary(), nullable=True),
        sa.Column("packed_steps", sa.LargeBinary(), nullable=True),
        sa.Column("facts", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], name=op.f("fk_blocks_run_key_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_blocks")),
        sa.UniqueConstraint("stream_key", "first_position", name=op.f("uq_blocks_stream_key_first_position")),
    )
    op.create_index("ix_blocks_run_key_last_position", "blocks", ["run_key", "last_position"], unique=False)
    op.create_table(
        "control_outcomes",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("stream_key", _KEY, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("code", sa.String(length=64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_key"], ["runs.key"], name=op.f("fk_control_outcomes_run_key_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_key", "version", "stream_key", name=op.f("pk_control_outcomes")),
    )
    op.create_table(
        "controls",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.Double(), nullable=False),
        sa.Column("requested_step", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("applied_step", sa.BigInteger(), nullable=True),
        sa.Column("applied_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("code", sa.String(length=64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=True),
        sa.Column("predicted", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], name=op.f("fk_controls_run_key_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_key", "version", name=op.f("pk_controls")),
        sa.UniqueConstraint("run_key", "idempotency_key", name=op.f("uq_controls_run_key_idempotency_key")),
    )
    op.create_index(op.f("ix_controls_state"), "controls", ["state"], unique=False)
    op.create_table(
        "driving_tokens",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("stream_key", _KEY, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_key"], ["runs.key"], name=op.f("fk_driving_tokens_run_key_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_key", "position", name=op.f("pk_driving_tokens")),
    )
    op.create_index("ix_driving_tokens_run_key_step", "driving_tokens", ["run_key", "step"], unique=False)
    op.create_table(
        "rollouts",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("stream_key", _KEY, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], name=op.f("fk_rollouts_run_key_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_key", "position", name=op.f("pk_rollouts")),
    )
    op.create_index("ix_rollouts_run_key_step", "rollouts", ["run_key", "step"], unique=False)
    op.create_table(
        "histogram_chunks",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("block_key", _KEY, nullable=False),
        sa.Column("bins", sa.Integer(), nullable=False),
        sa.Column("rows", sa.LargeBinary(), nullable=True),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_key"], ["runs.key"], name=op.f("fk_histogram_chunks_run_key_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_key", "name", "block_key", "bins", name=op.f("pk_histogram_chunks")),
    )
    op.create_index("ix_histogram_chunks_block_key", "histogram_chunks", ["block_key"], unique=False)
    op.create_table(
        "metric_chunks",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("block_key", _KEY, nullable=False),
        sa.Column("rows", sa.LargeBinary(), nullable=True),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("minimum", sa.Double(), nullable=True),
        sa.Column("maximum", sa.Double(), nullable=True),
        sa.Column("total", sa.Double(), nullable=True),
        sa.Column("values", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_key"], ["runs.key"], name=op.f("fk_metric_chunks_run_key_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_key", "name", "block_key", name=op.f("pk_metric_chunks")),
    )
    op.create_index("ix_metric_chunks_block_key", "metric_chunks", ["block_key"], unique=False)
    op.create_table(
        "run_digests",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("attention", sa.Integer(), nullable=False),
        sa.Column("level", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("computed_at", sa.Double(), nullable=False),
        sa.Column("digest", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("basis", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_key"], ["runs.key"], name=op.f("fk_run_digests_run_key_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_key", name=op.f("pk_run_digests")),
    )
    op.create_index("ix_run_digests_attention_run_key", "run_digests", ["attention", "run_key"], unique=False)
    op.create_table(
        "streams",
        sa.Column("key", _KEY, nullable=False),
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("incarnation", sa.String(length=128), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("last_report_at", sa.Double(), nullable=True),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("acked_through", sa.BigInteger(), nullable=False),
        sa.Column("control_version", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("initial_control", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], name=op.f("fk_streams_run_key_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_streams")),
        sa.UniqueConstraint("run_key", "incarnation", "rank", name=op.f("uq_streams_run_key_incarnation_rank")),
    )
    op.create_table(
        "what_if_sums",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("stream_key", _KEY, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_key"], ["runs.key"], name=op.f("fk_what_if_sums_run_key_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_key", "position", name=op.f("pk_what_if_sums")),
    )
    op.create_index("ix_what_if_sums_run_key_step", "what_if_sums", ["run_key", "step"], unique=False)
    op.create_table(
        "gaps",
        sa.Column("stream_key", _KEY, nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["stream_key"], ["streams.key"], name=op.f("fk_gaps_stream_key_streams"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("stream_key", "first_seq", name=op.f("pk_gaps")),
    )
    op.create_table(
        "quarantine",
        sa.Column("key", _KEY, nullable=False),
        sa.Column("stream_key", _KEY, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("content_hash", sa.LargeBinary(length=16), nullable=False),
        sa.Column("claimed_hash", sa.LargeBinary(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("code", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["stream_key"], ["streams.key"], name=op.f("fk_quarantine_stream_key_streams"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_quarantine")),
        sa.UniqueConstraint(
            "stream_key", "seq", "content_hash", "code", name=op.f("uq_quarantine_stream_key_seq_content_hash_code")
        ),
    )
    op.create_table(
        "records",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("stream_key", _KEY, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("payload_hash", sa.LargeBinary(length=16), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("recorded_at", sa.Double(), nullable=True),
        sa.Column("control_version", sa.BigInteger(), nullable=True),
        sa.Column("layout_key", _KEY, nullable=True),
        sa.Column("scalars", sa.LargeBinary(), nullable=True),
        sa.Column("labels", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("histograms", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], name=op.f("fk_records_run_key_runs"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["stream_key"], ["streams.key"], name=op.f("fk_records_stream_key_streams"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_key", "position", name=op.f("pk_records")),
        sa.UniqueConstraint("stream_key", "seq", name=op.f("uq_records_stream_key_seq")),
    )
    op.create_index("ix_records_run_key_step", "records", ["run_key", "step"], unique=False)
    op.create_table(
        "stream_layouts",
        sa.Column("stream_key", _KEY, nullable=False),
        sa.Column("layout_key", _KEY, nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["layout_key"], ["layouts.key"], name=op.f("fk_stream_layouts_layout_key_layouts")),
        sa.ForeignKeyConstraint(
            ["stream_key"], ["streams.key"], name=op.f("fk_stream_layouts_stream_key_streams"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("stream_key", "layout_key", name=op.f("pk_stream_layouts")),
    )
