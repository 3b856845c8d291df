"""For whoever changes the schema: `python -m openclaw_rl.store.migrations new "what changes"`, or `check`.

`new` writes a script with what the tables in `schema.py` have and the last revision has not; `check` says whether
there is such a difference.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from openclaw_rl.store.migrations import HEAD
from openclaw_rl.store.migrations.upgrade import FOLDER, alembic_config, differences

MAX_REVISION = 32
"""Characters that Alembic's table has for a revision."""


def undescribed(versions: Path = FOLDER / "versions") -> list[str]:
    """What the tables in `schema.py` have and the scripts do not make, or the other way round."""
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            command.upgrade(alembic_config(connection, versions), "head")
            return differences(connection)
    finally:
        engine.dispose()


def new(message: str, versions: Path = FOLDER / "versions") -> Path:
    """Write the next script into `versions`; where it is."""
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            config = alembic_config(connection, versions)
            scripts = list(ScriptDirectory.from_config(config).walk_revisions())
            slug = re.sub(r"[^a-z0-9]+", "_", message.lower()).strip("_")
            revision = f"{len(scripts) + 1:04d}_{slug}"[:MAX_REVISION].rstrip("_")
            command.upgrade(config, "head")
            command.revision(config, message, autogenerate=True, rev_id=revision)
    finally:
        engine.dispose()
    return versions / f"r{revision}.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the two. Exit codes: 0 done, 1 the scripts and the schema differ."""
    parser = argparse.ArgumentParser(prog="openclaw_rl.store.migrations")
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("new", help="write the next script")
    writing.add_argument("message", help="what changes, in a few words")
    writing.add_argument("--versions", type=Path, default=FOLDER / "versions", help="where the scripts are")
    commands.add_parser("check", help="compare schema.py with the scripts")
    arguments = parser.parse_args(argv)
    if arguments.command == "new":
        path = new(arguments.message, arguments.versions)
        sys.stdout.write(f"{path}\nRead it, put it right, and set HEAD to {path.stem[1:]!r}.\n")
        return 0
    found = undescribed()
    sys.stdout.write("".join(f"{line}\n" for line in found) or f"schema.py is what {HEAD} makes\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
