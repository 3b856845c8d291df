"""What Alembic runs to run the scripts: on the connection that it was given, in the transaction that this is in."""

from __future__ import annotations

from alembic import context

from openclaw_rl.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite changes a column only by making the table anew
)
with context.begin_transaction():
    context.run_migrations()
