"""The schema with which revisions began."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001_first"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make all tables, those that others refer to first."""
    _requests()
    _turns()
    _samples()
    _steps()
    _bookkeeping()


def downgrade() -> None:
    """Drop all tables, those that refer to others first."""
    for table in (
        "counters", "spans", "loops", "versions", "steps", "samples", "judgements", "turns", "signals", "requests",
        "sessions",
    ):  # fmt: skip
        op.drop_table(table)


def _requests() -> None:
    """Who asked what, in which conversation."""
    op.create_table(
        "sessions",
        sa.Column("session_id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("client_session_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("last_active_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("end_reason", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("session_id"),
    )
    with op.batch_alter_table("sessions") as batch_op:
        batch_op.create_index("sessions_by_client_id", ["key_id", "client_session_id"])
        batch_op.create_index("sessions_open", ["ended_at", "last_active_at"])
    op.create_table(
        "requests",
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("session_id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("parent_turn_id", sa.String(length=64), nullable=True),
        sa.Column("turn_type", sa.String(length=8), nullable=False),
        sa.Column("messages", sa.JSON(), nullable=False),
        sa.Column("tools", sa.JSON(), nullable=False),
        sa.Column("new_messages", sa.JSON(), nullable=False),
        sa.Column("session_done", sa.Boolean(), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("ambiguous", sa.Boolean(), nullable=False),
        sa.Column("brings_feedback", sa.Boolean(), nullable=False),
        sa.Column("retry_of", sa.String(length=64), nullable=True),
        sa.Column("sibling_of", sa.String(length=64), nullable=True),
        sa.Column("side_rule", sa.String(length=64), nullable=True),
        sa.Column("body_hash", sa.String(length=64), nullable=True),
        sa.Column("stem_hash", sa.String(length=64), nullable=True),
        sa.Column("session_hint", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.session_id"],
        ),
        sa.PrimaryKeyConstraint("turn_id"),
    )
    with op.batch_alter_table("requests") as batch_op:
        batch_op.create_index(batch_op.f("ix_requests_created_at"), ["created_at"])
        batch_op.create_index(batch_op.f("ix_requests_parent_turn_id"), ["parent_turn_id"])
        batch_op.create_index(batch_op.f("ix_requests_retry_of"), ["retry_of"])
        batch_op.create_index(batch_op.f("ix_requests_session_id"), ["session_id"])
        batch_op.create_index(batch_op.f("ix_requests_status"), ["status"])
        batch_op.create_index("requests_by_body", ["key_id", "body_hash"])
        batch_op.create_index("requests_by_stem", ["session_id", "stem_hash"])


def _turns() -> None:
    """What was answered, and what users did about it."""
    op.create_table(
        "signals",
        sa.Column("signal_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("by_turn_id", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["turn_id"],
            ["requests.turn_id"],
        ),
        sa.PrimaryKeyConstraint("signal_id"),
    )
    with op.batch_alter_table("signals") as batch_op:
        batch_op.create_index(batch_op.f("ix_signals_turn_id"), ["turn_id"])
    op.create_table(
        "turns",
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("session_id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("context_hash", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("state_since", sa.Float(), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("answer", sa.JSON(), nullable=False),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=False),
        sa.Column("response_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("versions", sa.LargeBinary(), nullable=False),
        sa.Column("kept", sa.LargeBinary(), nullable=True),
        sa.Column("chain_id", sa.String(length=64), nullable=True),
        sa.Column("extends_parent", sa.Boolean(), nullable=True),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("finish_reason", sa.String(length=16), nullable=False),
        sa.Column("next_state", sa.JSON(), nullable=True),
        sa.Column("next_turn_id", sa.String(length=64), nullable=True),
        sa.Column("served_at", sa.Float(), nullable=False),
        sa.Column("judge_lease_until", sa.Float(), nullable=True),
        sa.Column("judge_attempts", sa.Integer(), nullable=False),
        sa.Column("feedback_seen", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["turn_id"],
            ["requests.turn_id"],
        ),
        sa.PrimaryKeyConstraint("turn_id"),
    )
    with op.batch_alter_table("turns") as batch_op:
        batch_op.create_index(batch_op.f("ix_turns_session_id"), ["session_id"])
        batch_op.create_index("turns_by_context", ["key_id", "context_hash"])
        batch_op.create_index("turns_by_reason", ["reason"])
        batch_op.create_index("turns_by_state", ["state", "served_at"])


def _samples() -> None:
    """What was thought of an answer, and what is trained of it."""
    op.create_table(
        "judgements",
        sa.Column("judgement_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("hint", sa.Text(), nullable=True),
        sa.Column("prompt_version", sa.String(length=64), nullable=False),
        sa.Column("latency_s", sa.Float(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["turn_id"],
            ["turns.turn_id"],
        ),
        sa.PrimaryKeyConstraint("judgement_id"),
    )
    with op.batch_alter_table("judgements") as batch_op:
        batch_op.create_index(batch_op.f("ix_judgements_turn_id"), ["turn_id"])
        batch_op.create_index("judgements_by_kind", ["kind", "turn_id"])
    op.create_table(
        "samples",
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("state_since", sa.Float(), nullable=False),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("hint", sa.Text(), nullable=True),
        sa.Column("retry_prompt_turn_id", sa.String(length=64), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["turn_id"],
            ["turns.turn_id"],
        ),
        sa.PrimaryKeyConstraint("turn_id"),
    )
    with op.batch_alter_table("samples") as batch_op:
        batch_op.create_index("samples_by_state", ["state", "created_at"])


def _steps() -> None:
    """What came of training."""
    op.create_table(
        "steps",
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("sample_ids", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("step"),
    )
    op.create_table(
        "versions",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("state_since", sa.Float(), nullable=False),
        sa.Column("path", sa.Text(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("version"),
    )


def _bookkeeping() -> None:
    """What the loops say of themselves."""
    op.create_table(
        "loops",
        sa.Column("loop", sa.String(length=16), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("heartbeat_at", sa.Float(), nullable=False),
        sa.Column("activity", sa.Text(), nullable=False),
        sa.Column("waiting_for", sa.Text(), nullable=True),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("loop"),
    )
    op.create_table(
        "spans",
        sa.Column("span_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("span_id"),
    )
    with op.batch_alter_table("spans") as batch_op:
        batch_op.create_index(batch_op.f("ix_spans_name"), ["name"])
    op.create_table(
        "counters",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
