"""Rollouts of tasks: which there are, what became of them, and which are compared."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004_rollouts"
down_revision = "0003_records_and_pins"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """No rollout was made before."""
    op.create_table(
        "rollouts",
        sa.Column("session_name", sa.String(length=128), nullable=False),
        sa.Column("group_id", sa.String(length=64), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("group_state", sa.String(length=16), nullable=False),
        sa.Column("judged", sa.Boolean(), nullable=False),
        sa.Column("turn_ids", sa.JSON(), nullable=False),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("ended", sa.Text(), nullable=True),
        sa.Column("failure", sa.String(length=64), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("session_name"),
    )
    with op.batch_alter_table("rollouts") as batch_op:
        batch_op.create_index(batch_op.f("ix_rollouts_group_id"), ["group_id"])
        batch_op.create_index(batch_op.f("ix_rollouts_group_state"), ["group_state"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("rollouts")
