"""Changing the schema of a store that is there, with Alembic."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, create_engine

from openclaw_rl.store.migrations import FIRST, HEAD, StoreSchemaError, stamp
from openclaw_rl.store.schema import metadata

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent


def alembic_config(connection: Connection | None = None, versions: Path | None = None) -> Config:
    """Alembic's configuration: these scripts, on `connection`, inside whatever transaction it is in."""
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", str(versions or FOLDER / "versions").replace("%", "%%"))
    config.set_main_option("file_template", "r%%(rev)s")
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection, revision: str | None, name: str) -> None:
    """From `revision` (None: from before there were revisions) to `HEAD`, inside the caller's transaction.

    Raises:
        StoreSchemaError: if no revision of ours is where the store stands.
    """
    config = alembic_config(connection)
    if revision is None:
        adopt(connection, name)
    elif revision not in {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}:
        raise StoreSchemaError(
            f"{name} has the schema revision {revision}, which this program (at {HEAD}) does not know: a newer "
            "version of openclaw-rl wrote it. Use that version, or another --run-dir"
        )
    command.upgrade(config, "head")
    logger.info("the schema of %s was upgraded from %s to %s", name, revision or "before revisions", HEAD)


def adopt(connection: Connection, name: str) -> None:
    """Take over a store from before there were revisions: what the first revision adds is added, then it is stamped.

    Tables, indexes and columns that may be empty can be added without knowing what is in the store.

    Raises:
        StoreSchemaError: if more than that would have to be changed.
    """
    context = _context(connection)
    first = _first_schema()
    operations = Operations(context)
    missing = list(compare_metadata(context, first))
    for difference in missing:
        _add(operations, difference)
    rest = list(compare_metadata(_context(connection), first)) if missing else []
    if rest:
        raise StoreSchemaError(
            f"{name} was made before this program kept revisions, and cannot be upgraded ("
            f"{'; '.join(map(describe, rest))}). Start with a new --run-dir, or go on with the version of "
            "openclaw-rl that made it"
        )
    stamp(connection, FIRST)


def _add(operations: Operations, difference: Any) -> None:
    """Apply one difference where that needs no data; all others are found again by the comparison after it."""
    kind = difference[0] if isinstance(difference, tuple) else None
    if kind == "add_table":
        difference[1].create(operations.get_bind())
    elif kind == "add_column" and difference[3].nullable:
        operations.add_column(difference[2], difference[3]._copy())
    elif kind == "add_index":
        difference[1].create(operations.get_bind(), checkfirst=True)


def differences(connection: Connection, target: MetaData = metadata) -> list[str]:
    """In what a schema differs from `target`, each a few words; none where they are equal."""
    return [describe(found) for found in compare_metadata(_context(connection), target)]


def describe(difference: Any) -> str:
    """One difference of Alembic's comparison in words: `add_column turns.next`."""
    if isinstance(difference, list):  # several changes of one column
        return ", ".join(map(describe, difference))
    kind, *parts = difference
    if kind.endswith("_column"):
        return f"{kind} {parts[1]}.{parts[2].name}"
    if kind.startswith("modify_"):
        return f"{kind} {parts[1]}.{parts[2]}"
    subject = parts[0]
    table = getattr(getattr(subject, "table", None), "name", None)
    columns: Sequence[str] = [column.name for column in getattr(subject, "columns", ())]
    return f"{kind} {getattr(subject, 'name', None) or columns}" + (f" on {table}" if table else "")


def _context(connection: Connection) -> MigrationContext:
    return MigrationContext.configure(connection, opts={"include_object": _ours})


def _ours(_object: Any, name: str | None, kind: str, _reflected: bool, _compare_to: Any) -> bool:
    return not (kind == "table" and name is not None and name.startswith("sqlite_"))


def _first_schema() -> MetaData:
    """The schema of the first revision, as it comes out of its script."""
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            command.upgrade(alembic_config(connection), FIRST)
            found = MetaData()
            found.reflect(connection, only=lambda name, _: name != "alembic_version")
            return found
    finally:
        engine.dispose()
