"""Whose sessions rollouts are: any client may call a session of its own by a rollout's name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006_keys_of_rollouts"
down_revision = "0005_policy_per_user"
branch_labels = None
depends_on = None

_FIRST = (
    "SELECT {column} FROM sessions WHERE sessions.client_session_id = rollouts.session_name "
    "ORDER BY sessions.created_at LIMIT 1"
)
"""The driver names a session after something that nobody knows before it does: the first of that name is its own."""


def upgrade() -> None:
    """A rollout belongs to the key and the owner of its session; one that got none belongs to nobody."""
    with op.batch_alter_table("rollouts") as batch_op:
        batch_op.add_column(sa.Column("key_id", sa.String(length=64), nullable=True))
        batch_op.add_column(sa.Column("owner", sa.String(length=256), server_default="", nullable=False))
    op.execute(f"UPDATE rollouts SET key_id = ({_FIRST.format(column='key_id')})")
    op.execute(f"UPDATE rollouts SET owner = COALESCE(({_FIRST.format(column='owner')}), '')")


def downgrade() -> None:
    """Go by names alone again."""
    with op.batch_alter_table("rollouts") as batch_op:
        batch_op.drop_column("owner")
        batch_op.drop_column("key_id")
