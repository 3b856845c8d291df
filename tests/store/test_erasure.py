"""Deleting: rows, and every byte of them, also while others have the store open."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.store import Store
from openclaw_rl.store.erasure import BeingTrained, NotScrubbed
from openclaw_rl.store.schema import metadata
from openclaw_rl.store.turns import TurnStore
from openclaw_rl.types import Judgement, SampleState, Turn, TurnState
from tests.builders import Conversation, make_config, make_judgement, make_turn, user
from tests.store.helpers import candidate, step_record, to_sample

HOLDER = """
import sys, time
from openclaw_rl.store import Store
from pathlib import Path
store = Store.open(Path(sys.argv[1]))
assert store.turns.get("open1") is not None
print("open", flush=True)
sys.stdin.readline()
"""


def mark(name: str, number: int) -> str:
    return f"secret-{name}-{number}-of-the-user"


def said_in(run_dir: Path, words: str) -> list[str]:
    """The files below `run_dir` that hold these words."""
    return [path.name for path in run_dir.rglob("*") if path.is_file() and words.encode() in path.read_bytes()]


def lived(store: Store, session: str, turns: int, *, size: int = 1) -> None:
    """A session that went through states (rows are rewritten on the way), with judgements and samples."""
    talk = Conversation(store, session)
    for number in range(turns):
        words = mark(session, number) * size
        parent = f"{session}{number - 1}" if number else None
        talk.turn(f"{session}{number}", [user(words)], parent=parent)
    config = make_config(store._database.path.parent)
    run_pass(store, config, 0.0)
    for turn, _ in store.turns.claim_for_judging(99, 60.0):
        store.turns.record_judgement(make_judgement(turn.turn_id, -1.0, hint=f"Say {mark(session, 777)}"))
    run_pass(store, config, 0.0)


def rows_left(store: Store, session: str) -> dict[str, int]:
    found: dict[str, int] = {}
    with store._database.read() as connection:
        for table in metadata.tables.values():
            if "session_id" in table.c:
                condition = table.c.session_id == session
            elif "turn_id" in table.c:
                condition = table.c.turn_id.startswith(session)
            else:
                continue
            found[table.name] = connection.execute(
                select(func.count()).select_from(table).where(condition)
            ).scalar_one()
    return found


def test_nothing_is_left_of_a_session_and_everything_of_the_others(path: Path, store: Store) -> None:
    lived(store, "gone", 4)
    lived(store, "kept", 3)
    before = store.archive.read("kept")
    assert said_in(path.parent, mark("gone", 2))
    assert said_in(path.parent, mark("gone", 777))
    deleted = store.erasure.delete(["gone"], trainer_lives=True)
    assert (deleted.sessions, deleted.requests, deleted.turns, deleted.judgements, deleted.samples) == (1, 4, 4, 3, 3)
    assert set(rows_left(store, "gone").values()) == {0}
    assert store.archive.read("kept") == before
    store.erasure.scrub()
    for number in (0, 1, 2, 3, 777):
        assert said_in(path.parent, mark("gone", number)) == []
    assert said_in(path.parent, mark("kept", 1)) == ["store.sqlite"]
    assert store.status.counts().counters["turns_deleted"] == 4


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    size=st.sampled_from([1, 40, 400]),
    gone=st.integers(0, 3),
)
def test_no_byte_of_a_deleted_session_is_left_whatever_lay_around_it(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int, gone: int
) -> None:
    path = tmp_path_factory.mktemp("store") / "store.sqlite"
    store = Store.open(path)
    for number, length in enumerate(lengths):
        lived(store, f"s{number}x", length, size=size)
    chosen = gone % len(lengths)
    store.erasure.delete([f"s{chosen}x"], trainer_lives=True)
    store.erasure.scrub()
    for number, length in enumerate(lengths):
        for turn in range(length):
            assert bool(said_in(path.parent, mark(f"s{number}x", turn))) is (number != chosen)
    store.close()


def test_bytes_go_while_another_process_has_the_store_open(path: Path, store: Store) -> None:
    Conversation(store, "open").chain("Hello")
    lived(store, "gone", 3)
    program = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        store.erasure.delete(["gone"], trainer_lives=True)
        store.erasure.scrub()
        assert said_in(path.parent, mark("gone", 1)) == []
        assert holder.poll() is None
        assert holder.communicate("\n", timeout=30)[1] is None
    assert holder.returncode == 0
    assert said_in(path.parent, mark("gone", 1)) == []


def test_a_reader_in_the_middle_is_waited_for_and_an_endless_one_is_told(path: Path, store: Store) -> None:
    lived(store, "gone", 2)
    other = Store.open(path)
    with other._database.read() as reading:
        reading.exec_driver_sql("SELECT count(*) FROM turns")
        store.erasure.delete(["gone"], trainer_lives=True)
        with store._database.bare() as cursor:
            cursor.execute("PRAGMA busy_timeout=50")
        with pytest.raises(NotScrubbed):
            store.erasure.scrub(timeout_s=0.3)
        assert store.erasure.unscrubbed()
    waiting = threading.Thread(target=store.erasure.scrub)
    waiting.start()
    waiting.join(30)
    assert not store.erasure.unscrubbed()
    assert said_in(path.parent, mark("gone", 0)) == []
    other.close()


def test_what_is_being_trained_stays_and_claims_of_the_dead_do_not_count(store: Store) -> None:
    to_sample(store, "t1", "t2")
    store.samples.claim(1, 60.0)
    with pytest.raises(BeingTrained) as refused:
        store.erasure.delete(["s"], trainer_lives=True)
    assert refused.value.turn_ids == ("t1",)
    assert store.turns.get("t2") is not None
    assert store.erasure.delete(["s"], trainer_lives=False).samples == 2


def test_a_step_that_is_over_does_not_hinder_and_is_named(store: Store) -> None:
    to_sample(store, "t1", "t2", "t3")
    for step in (1, 2):
        claimed = store.samples.claim(2 if step == 1 else 1, 60.0)
        store.samples.commit_step(step_record(step, *(one.turn_id for one in claimed)), candidate(step))
    assert [(one.version, one.samples) for one in store.archive.trained_into(["s"])] == [(1, 2), (2, 1)]
    assert store.erasure.delete(["s"], trainer_lives=True).samples == 3
    assert [step.sample_ids for step in store.samples.steps()] == [("t1", "t2"), ("t3",)]
    assert store.archive.trained_into(["s"]) == []
    # The step's commit may be repeated by a trainer that did not hear of it.
    store.samples.commit_step(step_record(2, "t3"), candidate(2))


def test_an_answer_in_flight_finds_nothing_to_be_recorded_under(path: Path, store: Store) -> None:
    talk = Conversation(store, "gone")
    request = talk.ask("gone1", [user("hm")])
    store.erasure.delete(["gone"], trainer_lives=True)
    answer = {"role": "assistant", "content": mark("gone", 5)}
    with pytest.raises(IntegrityError):
        store.turns.record_turn(make_turn(request=request, answer=answer), context_hash="x")
    store.turns.record_failure("gone1", status="failed", error="engine_error")
    store.erasure.scrub()
    assert said_in(path.parent, mark("gone", 5)) == []


def test_a_judgement_under_way_is_dropped_and_loops_go_on(store: Store) -> None:
    lived(store, "s", 2)
    talk = Conversation(store, "t")
    talk.chain("a", "b")
    config = make_config(store._database.path.parent)
    run_pass(store, config, 0.0)
    ((turn, _),) = store.turns.claim_for_judging(9, 60.0)
    store.erasure.delete([turn.request.session_id], trainer_lives=True)
    late: Judgement = make_judgement(turn.turn_id, 1.0)
    store.turns.record_judgement(late)
    store.turns.release_from_judging(turn.turn_id, retry_in_s=0.0)
    assert store.status.counts().counters["judgements_of_deleted_turns"] == 1
    assert turn.turn_id not in {one.turn_id for one in store.turns.judgements()}
    run_pass(store, config, 0.0)
    assert store.samples.claim(9, 60.0)[0].session_id == "s"


def test_a_step_of_the_rollout_loop_survives_a_deletion_under_its_hands(store: Store) -> None:
    """Between reading the served turns and moving the first of them, their session is deleted."""

    class DeletedOnceRead(TurnStore):
        def in_state(self, state: TurnState, *, limit: int = 256) -> list[Turn]:
            found = super().in_state(state, limit=limit)
            store.erasure.delete(["gone"], trainer_lives=True)
            return found

    Conversation(store, "gone").chain("a", "b")
    store.turns = DeletedOnceRead(store._database)
    moved = run_pass(store, make_config(store._database.path.parent), 0.0)
    assert moved["classifying served turns"] == 1
    assert store.status.counts().turns_by_state == {}
    assert SampleState.READY.value not in store.status.counts().samples_by_state
