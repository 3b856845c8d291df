"""Whose policy sessions, requests, samples, steps and versions belong to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005_policy_per_user"
down_revision = "0004_rollouts"
branch_labels = None
depends_on = None

_INDEXES = {
    "sessions": ("sessions_by_owner", ["owner", "last_active_at"]),
    "requests": None,
    "samples": ("samples_by_owner", ["state", "owner", "created_at"]),
    "steps": ("steps_by_owner", ["owner", "step"]),
    "versions": ("versions_by_owner", ["owner", "state"]),
}


def upgrade() -> None:
    """All that there is belongs to the shared policy, whose owner is called ""."""
    for table, index in _INDEXES.items():
        with op.batch_alter_table(table) as batch_op:
            batch_op.add_column(sa.Column("owner", sa.String(length=256), server_default="", nullable=False))
            if index is not None:
                batch_op.create_index(*index)
    op.create_table(
        "base_pins",
        sa.Column("owner", sa.String(length=256), nullable=False),
        sa.Column("pinned_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("owner"),
    )


def downgrade() -> None:
    """Drop the owners: every policy's versions would be the shared one's, of which one may serve.

    Raises:
        RuntimeError: where anything belongs to another policy than the shared one.
    """
    for table in _INDEXES:
        found = op.get_bind().execute(sa.text(f"SELECT COUNT(*) FROM {table} WHERE owner <> ''")).scalar_one()
        if found:
            raise RuntimeError(f"{found} rows of {table} belong to a user's own policy")
    op.drop_table("base_pins")
    for table, index in reversed(_INDEXES.items()):
        with op.batch_alter_table(table) as batch_op:
            if index is not None:
                batch_op.drop_index(index[0])
            batch_op.drop_column("owner")
