"""Which schema a store has, and bringing it to the one that this program knows.

A store that is at `HEAD` costs one small read: Alembic is imported only where there is something to change.
"""

from __future__ import annotations

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, inspect, select

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.store.schema import metadata

FIRST = "0001_first"
HEAD = "0008_deaths"
"""The last revision in `versions/`; `tests/store/test_migrations.py` compares."""

version_table = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own table, as Alembic makes it."""


class StoreSchemaError(ConfigError):
    """A store that this program cannot use as it is; the message says what to do. Trying again would not help."""


def revision_of(connection: Connection) -> str | None:
    """The revision that a store says it has; None where it says nothing."""
    if not inspect(connection).has_table(version_table.name):
        return None
    return connection.execute(select(version_table.c.version_num)).scalar()


def bring_to_head(connection: Connection, name: str) -> None:
    """Create, stamp or upgrade the schema inside the caller's transaction, which excludes all other writers.

    `name` is the store's, for messages.

    Raises:
        StoreSchemaError: if the store is of a newer program, or of none that is known.
    """
    revision = revision_of(connection)
    if revision == HEAD:  # another process was faster
        return
    if revision is None and not inspect(connection).get_table_names():
        metadata.create_all(connection)
        stamp(connection)
        return
    from openclaw_rl.store.migrations.upgrade import upgrade

    upgrade(connection, revision, name)


def stamp(connection: Connection, revision: str = HEAD) -> None:
    """Write down which revision the schema has."""
    version_table.create(connection, checkfirst=True)
    connection.execute(version_table.delete())
    connection.execute(version_table.insert().values(version_num=revision))
