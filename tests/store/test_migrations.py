"""The schema's revisions: what makes a store, what upgrades one, and which stores are refused."""

from __future__ import annotations

import importlib
import io
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Integer, MetaData, String, Table, Text, create_engine, inspect
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from openclaw_rl.store import Store
from openclaw_rl.store.database import Database
from openclaw_rl.store.migrations import FIRST, HEAD, StoreSchemaError, bring_to_head, revision_of, version_table
from openclaw_rl.store.migrations.__main__ import MAX_REVISION, main, undescribed
from openclaw_rl.store.migrations.upgrade import FOLDER, alembic_config, differences, upgrade
from openclaw_rl.store.schema import metadata
from tests.builders import Conversation
from tests.store.test_processes import outputs, workers

ROOT = Path(__file__).parents[2]
WRITE_ONE = 'write a migration: python -m openclaw_rl.store.migrations new "what changes" (see CONTRIBUTING.md)'


def run_sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def before_revisions(path: Path, *statements: str) -> None:
    """A store with a turn in it, as it was before there were revisions, and before `statements` were undone."""
    from alembic import command

    store = Store.open(path)
    Conversation(store).turn("t1")
    store.close()
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        command.downgrade(alembic_config(connection), FIRST)
    engine.dispose()
    run_sql(path, "DROP TABLE alembic_version", *statements)


def stored_revision(path: Path) -> str | None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        found = revision_of(connection)
    engine.dispose()
    return found


# --- the scripts and the schema are the same ------------------------------------------------------------------


def test_the_last_revision_makes_exactly_the_schema() -> None:
    assert undescribed() == [], WRITE_ONE


def test_revisions_are_one_line_that_ends_at_head() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    assert scripts.get_heads() == [HEAD], "two branches added revisions: let one follow the other, and set HEAD"
    assert scripts.get_bases() == [FIRST]
    assert all(len(script.revision) <= MAX_REVISION for script in scripts.walk_revisions())


def test_a_new_store_is_what_the_revisions_make(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.sqlite")
    with database.read() as connection:
        assert differences(connection) == []
        assert revision_of(connection) == HEAD
        made = inspect(connection).get_pk_constraint(version_table.name)
    database.close()
    assert made["constrained_columns"] == ["version_num"]


def test_every_revision_can_be_undone(tmp_path: Path) -> None:
    from alembic import command

    engine = create_engine(f"sqlite:///{tmp_path / 'store.sqlite'}")
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "head")
        command.downgrade(alembic_config(connection), "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
        command.upgrade(alembic_config(connection), "head")
        assert differences(connection) == []
    engine.dispose()


def test_the_scripts_are_part_of_the_package() -> None:
    importlib.import_module("openclaw_rl.store.migrations.versions")  # so that setuptools takes the folder
    shipped = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    suffixes = {path.suffix for path in FOLDER.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    assert suffixes == {".mako"}
    assert '"*.mako"' in shipped


# --- PostgreSQL -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", metadata.sorted_tables, ids=lambda table: table.name)
def test_every_table_compiles_for_postgresql(table: Table) -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    text = str(CreateTable(table).compile(dialect=dialect))
    assert text.strip().startswith(f"CREATE TABLE {table.name}")
    assert "NULL," not in text.replace("NOT NULL,", "")
    for index in table.indexes:
        assert f"ON {table.name}" in str(CreateIndex(index).compile(dialect=dialect))
    assert len(table.name) <= 63
    assert all(len(str(index.name)) <= 63 for index in table.indexes), "PostgreSQL cuts longer names"


def test_the_revisions_are_sql_that_postgresql_could_run() -> None:
    """Alembic's offline mode: the same scripts, written out for the other dialect."""
    from alembic.runtime.environment import EnvironmentContext
    from alembic.runtime.migration import MigrationContext

    config = alembic_config()
    scripts = ScriptDirectory.from_config(config)
    written = io.StringIO()

    def steps(revision: object, _context: MigrationContext) -> Sequence[object]:
        return scripts._upgrade_revs("head", revision)  # type: ignore[arg-type]

    with EnvironmentContext(config, scripts, fn=steps, as_sql=True, destination_rev="head") as environment:
        environment.configure(dialect_name="postgresql", output_buffer=written)
        environment.run_migrations()
    text = written.getvalue()
    assert all(f"CREATE TABLE {table.name} (" in text for table in metadata.sorted_tables)
    assert "DATETIME" not in text
    assert "BYTEA" in text


# --- opening ----------------------------------------------------------------------------------------------------


def test_opening_at_head_imports_no_alembic_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    Store.open(path).close()
    before = path.read_bytes()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")  # whoever wrote would have to wait for this
    code = (
        "import sys, pathlib; from openclaw_rl.store import Store\n"
        f"Store.open(pathlib.Path({str(path)!r}), patience_s=0.1).close()\n"
        "assert not {'alembic', 'mako'} & set(sys.modules), 'alembic was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    holder.execute("ROLLBACK")
    holder.close()
    assert path.read_bytes() == before


def test_a_store_from_before_revisions_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    before_revisions(path)
    store = Store.open(path)
    assert stored_revision(path) == HEAD
    assert store.turns.get("t1") is not None
    store.close()


def test_what_an_older_store_lacks_is_added(tmp_path: Path) -> None:
    """The store of an earlier day: without signals, without a column and an index."""
    path = tmp_path / "store.sqlite"
    before_revisions(
        path,
        "DROP TABLE signals",
        "DROP INDEX requests_by_stem",
        "ALTER TABLE turns DROP COLUMN feedback_seen",
        "ALTER TABLE turns DROP COLUMN kept",
    )
    store = Store.open(path)
    with store._database.read() as connection:
        assert differences(connection) == []
    turn = store.turns.get("t1")
    assert turn is not None
    assert turn.tokens.kept is None
    store.close()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("ALTER TABLE requests DROP COLUMN brings_feedback", "add_column requests.brings_feedback"),
        ("ALTER TABLE samples ADD COLUMN colour TEXT", "remove_column samples.colour"),
        ("CREATE TABLE other (a INTEGER)", "remove_table other"),
    ],
)
def test_a_store_that_cannot_be_upgraded_is_refused_and_untouched(tmp_path: Path, statement: str, words: str) -> None:
    path = tmp_path / "store.sqlite"
    before_revisions(path, "DROP TABLE signals", statement)
    with pytest.raises(StoreSchemaError, match=words) as caught:
        Store.open(path)
    assert "--run-dir" in str(caught.value)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'signals'").fetchall() == []
    assert connection.execute("SELECT count(*) FROM turns").fetchone() == (1,)
    connection.close()
    assert stored_revision(path) is None


def test_a_store_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    Store.open(path).close()
    run_sql(path, "UPDATE alembic_version SET version_num = '9999_later'")
    with pytest.raises(StoreSchemaError, match=r"9999_later.*a newer version of openclaw-rl"):
        Store.open(path)
    assert stored_revision(path) == "9999_later"


def test_whoever_only_looks_does_not_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    before_revisions(path)
    with pytest.raises(StoreSchemaError, match="openclaw-rl up"):
        Store.open(path, migrate=False)
    assert stored_revision(path) is None


def test_processes_that_open_an_old_store_at_once_upgrade_it_once(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    before_revisions(path, "DROP TABLE signals", "ALTER TABLE turns DROP COLUMN kept")
    with workers("open", path, 5) as started:
        assert outputs(started) == [["0"]] * 5
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(HEAD,)]
    connection.close()


# --- a second revision -------------------------------------------------------------------------------------------

SECOND = '''"""Turns get a colour, and their sessions a rowid-free copy."""

import sqlalchemy as sa
from alembic import op

revision = "0002_colour"
down_revision = "{first}"
branch_labels = None
depends_on = None


def upgrade():
    """Samples are made anew, which drops a table that others may refer to."""
    op.add_column("turns", sa.Column("colour", sa.Text(), nullable=True))
    with op.batch_alter_table("requests") as batch:
        batch.alter_column("model", type_=sa.String(256))
    {more}


def downgrade():
    """Back."""
    op.drop_column("turns", "colour")
'''


def second_revision(tmp_path: Path, more: str = "pass") -> Path:
    versions = tmp_path / "versions"
    shutil.copytree(FOLDER / "versions", versions, ignore=shutil.ignore_patterns("__pycache__"))
    (versions / "r0002_colour.py").write_text(SECOND.format(first=HEAD, more=more), encoding="utf-8")
    return versions


def test_a_revision_changes_what_is_stored_in_place(tmp_path: Path) -> None:
    from alembic import command

    from openclaw_rl.store.database import _engine, _writing

    path = tmp_path / "store.sqlite"
    before_revisions(path)
    Store.open(path).close()
    versions = second_revision(tmp_path)
    engine = _engine(path, 1.0, foreign_keys=False)
    with _writing(engine) as connection:
        command.upgrade(alembic_config(connection, versions), "head")
        assert connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall() == []
    with engine.connect() as connection:
        columns = {column["name"]: column["type"] for column in inspect(connection).get_columns("turns")}
        assert isinstance(columns["colour"], Text)
        models = {column["name"]: column["type"] for column in inspect(connection).get_columns("requests")}
        assert isinstance(models["model"], String)
        assert models["model"].length == 256
        assert connection.exec_driver_sql("SELECT turn_id, colour FROM turns").fetchall() == [("t1", None)]
    engine.dispose()


def test_rollouts_get_the_key_of_the_first_session_of_their_name(tmp_path: Path) -> None:
    from alembic import command

    path = tmp_path / "store.sqlite"
    Store.open(path).close()
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        command.downgrade(alembic_config(connection), "0005_policy_per_user")
    engine.dispose()
    session = "INSERT INTO sessions (session_id, key_id, client_session_id, created_at, last_active_at, owner) VALUES"
    rollout = (
        "INSERT INTO rollouts (session_name, group_id, task_id, number, attempt, state, group_state, judged, "
        "turn_ids, started_at) VALUES ('{}', 'g', 't', 0, 0, 'finished', 'open', 1, '[]', 1)"
    )
    run_sql(
        path,
        f"{session} ('s1', 'tasks', 'made', 1, 9, 'anna'), ('s2', 'phone', 'made', 2, 9, '')",
        rollout.format("made"),
        rollout.format("cut-off"),
    )
    Store.open(path).close()
    opened = sqlite3.connect(path)
    found = opened.execute("SELECT session_name, key_id, owner FROM rollouts ORDER BY session_name").fetchall()
    opened.close()
    assert found == [("cut-off", None, ""), ("made", "tasks", "anna")]


def test_a_store_gets_an_id_once_and_no_two_the_same(tmp_path: Path) -> None:
    path, other = tmp_path / "store.sqlite", Store.open(tmp_path / "other.sqlite")
    before_revisions(path)  # the id that it had is gone with its table
    store = Store.open(path)
    found = store.identity.get()
    store.identity.ensure()
    store.close()
    again = Store.open(path, migrate=False)
    assert again.identity.get() == found != other.identity.get()
    assert len(found) == 32
    again.close()
    other.close()


def test_a_revision_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    from alembic import command

    from openclaw_rl.store.database import _engine, _writing

    path = tmp_path / "store.sqlite"
    Store.open(path).close()
    versions = second_revision(tmp_path, more='op.execute("INSERT INTO nowhere VALUES (1)")')
    engine = _engine(path, 1.0, foreign_keys=False)
    with pytest.raises(Exception, match="nowhere"), _writing(engine) as connection:
        command.upgrade(alembic_config(connection, versions), "head")
    engine.dispose()
    store = Store.open(path)
    with store._database.read() as connection:
        assert differences(connection) == []
        assert revision_of(connection) == HEAD
    store.close()


def test_an_unknown_place_between_revisions_is_refused(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'store.sqlite'}")
    with engine.begin() as connection:
        bring_to_head(connection, "it")
        with pytest.raises(StoreSchemaError, match="does not know"):
            upgrade(connection, "0000_never", "it")
    engine.dispose()


# --- the tool ------------------------------------------------------------------------------------------------------


def test_new_writes_a_script_that_makes_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From no revisions at all, the first script that it writes makes the whole schema."""
    versions = tmp_path / "versions"
    versions.mkdir()
    assert main(["new", "From nothing, all!", "--versions", str(versions)]) == 0
    script = versions / "r0001_from_nothing_all.py"
    assert str(script) in capsys.readouterr().out
    assert undescribed(versions) == []
    compile(script.read_text(encoding="utf-8"), str(script), "exec")


def test_check_says_whether_a_script_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 0
    assert HEAD in capsys.readouterr().out


def test_a_difference_is_said_in_words(tmp_path: Path) -> None:
    engine = create_engine("sqlite://")
    other = MetaData()
    Table("here", other, Column("a", Integer, primary_key=True), Column("b", Text, index=True))
    with engine.begin() as connection:
        assert differences(connection, other) == ["add_table here", "add_index ix_here_b on here"]
        connection.exec_driver_sql("CREATE TABLE here (a INTEGER NOT NULL PRIMARY KEY, c TEXT NOT NULL)")
        found = differences(connection, other)
    engine.dispose()
    assert sorted(found) == ["add_column here.b", "add_index ix_here_b on here", "remove_column here.c"]
