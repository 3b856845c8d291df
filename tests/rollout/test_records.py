"""Conversation records: each turn and each judgement once, whatever is killed, rotated, deleted or restored."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config
from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.rollout.record_files import RecordFiles, RecordsLocked
from openclaw_rl.rollout.records import BATCH, INTERVAL_S, ConversationRecords, turn_line
from openclaw_rl.sessions.deletion import delete_sessions
from openclaw_rl.sessions.document import from_document, to_document
from openclaw_rl.store import Store
from openclaw_rl.store.verdicts import human_judgement
from tests.builders import Conversation, make_config, make_judgement, user


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_config(tmp_path / "run", records={"enabled": True, "max_bytes": 4096, "keep": 2})


def lines(config: Config) -> list[dict[str, Any]]:
    """All lines, the oldest first."""
    files = reversed(RecordFiles(config.records_dir).files())
    return [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]


class Clock:
    """A time that passes by whole intervals."""

    def __init__(self) -> None:
        self.now = time.time()

    def write(self, records: ConversationRecords) -> int:
        """Let the records settle; how many lines."""
        written = 0
        for _ in range(9):
            self.now += INTERVAL_S
            written += records.write_due(self.now)
        return written


@pytest.fixture
def clock() -> Clock:
    return Clock()


def judge(store: Store, config: Config) -> None:
    run_pass(store, config, 0.0)
    for turn, _ in store.turns.claim_for_judging(99, 60.0):
        store.turns.record_judgement(make_judgement(turn.turn_id, -1.0, hint="Be short."))


def test_a_line_for_each_turn_and_each_judgement_once(store: Store, config: Config, clock: Clock) -> None:
    records = ConversationRecords(store, config)
    assert clock.write(records) == 0
    assert not config.records_dir.exists()
    Conversation(store).chain("What is a tide?", "Too long.")
    assert clock.write(records) == 2
    judge(store, config)
    store.feedback.record(human_judgement("s2", 1.0, "Good."), key_id=None)
    assert clock.write(records) == 2
    assert clock.write(records) == 0
    found = lines(config)
    assert [(line["type"], line["turn_id"]) for line in found] == [
        ("turn", "s1"), ("turn", "s2"), ("judgement", "s1"), ("judgement", "s2"),
    ]  # fmt: skip
    assert found[1]["messages"] == [user("What is a poem?"), user("Too long.")]
    assert (found[1]["parent_turn_id"], found[1]["versions"]) == ("s1", [0])
    assert found[2]["next_state"] == [user("Too long.")]
    assert (found[2]["score"], found[2]["hint"], found[3]["judge"]) == (-1.0, "Be short.", "human")
    assert stat.S_IMODE(RecordFiles(config.records_dir).current.stat().st_mode) == 0o600


def test_a_restart_goes_on_and_truncates_nothing(store: Store, config: Config, clock: Clock) -> None:
    talk = Conversation(store)
    talk.chain("a")
    clock.write(ConversationRecords(store, config))
    before = lines(config)
    talk.turn("later", [user("b")])
    again = ConversationRecords(store, config)
    assert clock.write(again) == 1
    assert lines(config)[:1] == before
    assert [line["turn_id"] for line in lines(config)] == ["s1", "later"]


def test_killed_between_the_lines_and_the_note_of_them(store: Store, config: Config, clock: Clock) -> None:
    """What a killed process had written, or half written, is there once when the next one has gone on."""
    Conversation(store).chain("a", "b", "c")
    fresh = store.recording.unwritten(since=0.0, limit=BATCH)
    told = [turn_line(row) for row in fresh.turns]
    files = RecordFiles(config.records_dir, max_bytes=4096, keep=2)
    files.append(told[:1])
    with files.current.open("a", encoding="utf-8") as file:
        file.write(told[1][:40])
    assert clock.write(ConversationRecords(store, config)) == 2
    assert [line["turn_id"] for line in lines(config)] == ["s1", "s2", "s3"]


def test_files_rotate_and_the_oldest_go(store: Store, config: Config, clock: Clock) -> None:
    talk = Conversation(store)
    records = ConversationRecords(store, config)
    for number in range(12):
        talk.turn(f"t{number:02}", [user("x" * 1000)])
        assert clock.write(records) == 1
    files = RecordFiles(config.records_dir).files()
    assert [path.name for path in files] == ["conversations.jsonl", "conversations.1.jsonl", "conversations.2.jsonl"]
    assert all(path.stat().st_size <= 4096 for path in files)
    kept = [line["turn_id"] for line in lines(config)]
    assert kept == [f"t{number:02}" for number in range(12 - len(kept), 12)]
    assert clock.write(ConversationRecords(store, config)) == 0


def test_deleting_a_session_takes_its_lines_from_every_file(store: Store, config: Config, clock: Clock) -> None:
    records = ConversationRecords(store, config)
    gone, kept = Conversation(store, "gone"), Conversation(store, "kept")
    for number in range(3):
        gone.turn(f"gone{number}", [user("secret of gone" + "x" * 1000)])
        kept.turn(f"kept{number}", [user("word of kept" + "x" * 1000)])
        clock.write(records)
    rows = store.archive.read("gone")
    assert rows is not None
    there = sum(line["session_id"] == "gone" for line in lines(config))
    outcome = delete_sessions(store, config, ["gone"])
    assert outcome.lines == there > 1
    for path in config.run_dir.rglob("*"):
        assert not path.is_file() or b"secret of gone" not in path.read_bytes(), path
    assert {line["session_id"] for line in lines(config)} == {"kept"}
    kept.turn("kept3", [user("more")])
    assert clock.write(records) == 1
    # Restored, it was served here after all, and has its lines again.
    store.archive.put([from_document(json.loads(json.dumps(to_document(rows, "x")))).rows])
    assert clock.write(records) == 3


def test_the_writer_waits_while_a_deletion_holds_the_files(store: Store, config: Config, clock: Clock) -> None:
    Conversation(store).chain("a")
    records = ConversationRecords(store, config)
    with RecordFiles(config.records_dir).locked():
        assert records.write_due(clock.now) == 0
        with pytest.raises(RecordsLocked), RecordFiles(config.records_dir).locked(timeout_s=0.1):
            pass
    assert clock.write(records) == 1


def test_off_by_default_and_a_directory_that_cannot_be_written_stops_nothing(
    store: Store, config: Config, clock: Clock, tmp_path: Path
) -> None:
    Conversation(store).chain("a")
    off = make_config(config.run_dir)
    assert clock.write(ConversationRecords(store, off)) == 0
    assert not off.records_dir.exists()
    (tmp_path / "file").write_text("in the way")
    blocked = make_config(config.run_dir, records={"enabled": True, "path": tmp_path / "file" / "records"})
    records = ConversationRecords(store, blocked)
    assert clock.write(records) == 0
    assert store.status.counts().counters["records_failures"] >= 1
    (tmp_path / "file").unlink()
    assert clock.write(records) == 1
