"""What tells a store from all others, and on which version each was built."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007_identity_and_basis"
down_revision = "0006_keys_of_rollouts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing is known of either of what is there: a store gets its id when it is opened."""
    op.create_table(
        "identity",
        sa.Column("store_id", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("store_id"),
    )
    with op.batch_alter_table("versions") as batch_op:
        batch_op.add_column(sa.Column("basis", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Go by samples and by numbers again."""
    with op.batch_alter_table("versions") as batch_op:
        batch_op.drop_column("basis")
    op.drop_table("identity")
