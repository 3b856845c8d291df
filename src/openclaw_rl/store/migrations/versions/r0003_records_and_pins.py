"""Imported turns, conversation records, and why a version was rejected or is kept in service."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_records_and_pins"
down_revision = "0002_hints"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """No turn of before was imported, none is in a record, and no version is pinned."""
    op.create_table(
        "recorded",
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("judgement_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.turn_id"]),
        sa.PrimaryKeyConstraint("turn_id"),
    )
    with op.batch_alter_table("samples") as batch_op:
        batch_op.alter_column("version", existing_type=sa.Integer(), nullable=True)
    with op.batch_alter_table("turns") as batch_op:
        batch_op.add_column(sa.Column("reconstructed", sa.Boolean(), server_default=sa.false(), nullable=False))
    with op.batch_alter_table("versions") as batch_op:
        batch_op.add_column(sa.Column("reason", sa.String(length=64), nullable=True))
        batch_op.add_column(sa.Column("pinned_at", sa.Float(), nullable=True))


def downgrade() -> None:
    """Drop what was added; fails where there are samples of imported turns, which have no version."""
    with op.batch_alter_table("versions") as batch_op:
        batch_op.drop_column("pinned_at")
        batch_op.drop_column("reason")
    with op.batch_alter_table("turns") as batch_op:
        batch_op.drop_column("reconstructed")
    with op.batch_alter_table("samples") as batch_op:
        batch_op.alter_column("version", existing_type=sa.Integer(), nullable=False)
    op.drop_table("recorded")
