"""How often the trainer died over a sample."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_deaths"
down_revision = "0007_identity_and_basis"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nobody counted before: no sample is under suspicion."""
    op.create_table(
        "deaths",
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("place", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("alone", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.turn_id"]),
        sa.PrimaryKeyConstraint("turn_id", "place"),
    )


def downgrade() -> None:
    """Count no more."""
    op.drop_table("deaths")
