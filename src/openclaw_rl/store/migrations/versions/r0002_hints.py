"""All hint candidates of judgements and samples, and who read them in a step."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002_hints"
down_revision = "0001_first"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rows of before have no candidates beside their hint (null), and steps say nothing of their teacher."""
    for table, column in (("judgements", "alternatives"), ("samples", "alternatives"), ("steps", "teacher")):
        with op.batch_alter_table(table) as batch_op:
            batch_op.add_column(sa.Column(column, sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    for table, column in (("judgements", "alternatives"), ("samples", "alternatives"), ("steps", "teacher")):
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_column(column)
