"""What counts as a change of the record, and when a loop looks again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert
from sqlalchemy.exc import IntegrityError

from openclaw_rl.store import Store
from openclaw_rl.store.database import Database
from openclaw_rl.store.news import News
from openclaw_rl.store.schema import counters
from openclaw_rl.types import LoopName, LoopStatus, TurnState
from tests.builders import Conversation

HEARTBEAT = LoopStatus(
    loop=LoopName.TRAINING, pid=1, heartbeat_at=1.0, activity="a step", waiting_for=None, since=1.0, details={}
)


def together(store: Store) -> None:
    with store.together():
        store.status.count("one")
        store.status.count("other")


def nothing(store: Store) -> None:
    """Transactions that hold the write lock and change no row."""
    store.turns.claim_for_judging(1, 60.0)
    store.samples.claim(1, 60.0)


@pytest.mark.parametrize(
    ("act", "counts"),
    [
        (lambda store: Conversation(store).ask("t2"), True),
        (lambda store: store.turns.move("t1", TurnState.AWAITING_NEXT_STATE), True),
        (lambda store: store.sessions.end("k", "s", "done"), True),
        (together, True),
        (nothing, False),
        (lambda store: store.status.report(HEARTBEAT), False),
        (lambda store: store.turns.get("t1"), False),
    ],
)
def test_what_counts_is_a_row_that_changed_and_no_heartbeat(
    store: Store, path: Path, act: Callable[[Store], object], counts: bool
) -> None:
    Conversation(store).turn("t1")
    other = Store.open(path)  # as another process has it open
    before = other.changes()
    act(store)
    assert (other.changes() != before, store.changes() != before) == (counts, counts)
    other.close()


def twice(write: Callable[[], AbstractContextManager[Connection]]) -> None:
    with write() as connection:
        connection.execute(insert(counters).values(name="steps", value=1))
        connection.execute(insert(counters).values(name="steps", value=1))


def test_what_is_written_durably_counts_and_what_is_undone_does_not(path: Path) -> None:
    database = Database(path)
    before = database.changes()
    for write in (database.write, database.write_durably, database.together):
        with pytest.raises(IntegrityError):
            twice(write)
    assert database.changes() == before
    with database.write_durably() as connection:
        connection.execute(insert(counters).values(name="steps", value=1))
    assert database.changes() != before
    database.close()


class Record:
    """A count of changes and a clock, set by hand."""

    def __init__(self) -> None:
        self.count = 0
        self.now = 100.0

    def changes(self) -> int:
        return self.count

    def clock(self) -> float:
        return self.now


def test_a_loop_that_found_nothing_looks_again_after_a_change() -> None:
    record = Record()
    news = News(record.changes, clock=record.clock)
    assert news.worth_a_look(0.0)
    assert news.worth_a_look(0.0), "it found something: there may be more"
    news.nothing_found()
    assert not news.worth_a_look(0.0)
    assert not news.worth_a_look(1e12)
    record.count += 1
    assert news.worth_a_look(0.0)


def test_what_changes_during_a_look_is_news_after_it() -> None:
    record = Record()
    news = News(record.changes, clock=record.clock)
    assert news.worth_a_look(0.0)
    record.count += 1
    news.nothing_found()
    assert news.worth_a_look(0.0)


def test_it_looks_again_when_something_is_due_and_sometimes_anyway() -> None:
    record = Record()
    news = News(record.changes, anyway_s=5.0, clock=record.clock)
    assert news.worth_a_look(10.0)
    news.nothing_found(until=12.0)
    assert not news.worth_a_look(11.9)
    assert news.worth_a_look(12.0)
    news.nothing_found()
    record.now += 4.9
    assert not news.worth_a_look(12.0)
    record.now += 0.1
    assert news.worth_a_look(12.0), "what other programs write is not counted"
