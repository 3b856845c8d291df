"""The rollout loop while nothing happens: what it asks, and that it misses nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event

from openclaw_rl.config import RolloutConfig
from openclaw_rl.rollout.loop import STEPS, RolloutLoop
from openclaw_rl.store import Store
from openclaw_rl.store.news import ANYWAY_S
from openclaw_rl.types import ExclusionReason, LoopName, LoopStatus, TurnState
from tests.builders import Conversation, make_config, state_of
from tests.gateway.conftest import wait_until

POLL_S = 0.02


def heartbeat(loop: LoopName) -> LoopStatus:
    return LoopStatus(loop=loop, pid=1, heartbeat_at=time.time(), activity="", waiting_for="", since=0.0, details={})


class Looks:
    """Counts what a store is asked in the words of one of the steps: the passes over it."""

    def __init__(self, store: Store) -> None:
        self.number = 0
        event.listen(store._database._engine, "before_cursor_execute", self._see)

    def _see(self, _connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        self.number += "group_state = ?" in statement and statement.startswith("SELECT DISTINCT")


@contextmanager
def looping(run_dir: Path, **rollout: Any) -> Iterator[tuple[Store, Looks]]:
    """A loop at work, with the store of somebody else and the looks of the loop."""
    config = make_config(run_dir, rollout=RolloutConfig(poll_interval_s=POLL_S, **rollout))
    outside, own, stop = Store.open(config.store_path), Store.open(config.store_path), threading.Event()
    looks = Looks(own)
    thread = threading.Thread(target=RolloutLoop(config, own, stop).run)
    thread.start()
    try:
        yield outside, looks
    finally:
        stop.set()
        thread.join(10)
        outside.close()
        own.close()
    assert not thread.is_alive()


def until_quiet(looks: Looks) -> int:
    """Wait till the loop has stopped looking; how often it has looked."""
    seen, end = -1, time.monotonic() + 10
    while seen != looks.number:
        assert time.monotonic() < end, "it looks again and again"
        seen = looks.number
        time.sleep(10 * POLL_S)
    return seen


def test_nothing_is_asked_while_others_only_say_that_they_live(tmp_path: Path) -> None:
    assert next(iter(STEPS)) == "releasing rollouts"  # by whose question `Looks` counts
    with looping(tmp_path) as (outside, looks):
        Conversation(outside).turn("t1")
        wait_until(lambda: state_of(outside, "t1") == (TurnState.AWAITING_NEXT_STATE, None))
        before, begun = until_quiet(looks), time.monotonic()
        assert before > 0
        while time.monotonic() - begun < 1.0:
            outside.status.report(heartbeat(LoopName.ENGINE))
            time.sleep(POLL_S)
        anyway = (time.monotonic() - begun) / ANYWAY_S
        assert looks.number - before <= 1 + anyway, "it looked though nothing had changed"


def test_a_turn_that_comes_after_a_quiet_time_is_taken_at_once(tmp_path: Path) -> None:
    with looping(tmp_path) as (outside, looks):
        until_quiet(looks)
        for number in range(3):
            Conversation(outside, f"s{number}").turn(f"t{number}")
            began = time.monotonic()
            wait_until(lambda turn=f"t{number}": state_of(outside, turn)[0] is not TurnState.SERVED)  # type: ignore[misc]
            assert time.monotonic() - began < ANYWAY_S / 3
            until_quiet(looks)


def test_a_session_ends_when_it_has_been_idle_for_long_enough_and_nothing_else_happens(tmp_path: Path) -> None:
    with looping(tmp_path, idle_timeout_s=1.0) as (outside, _looks):
        Conversation(outside).turn("t1")
        began = time.monotonic()
        unanswered = (TurnState.EXCLUDED, ExclusionReason.NO_NEXT_STATE)
        wait_until(lambda: state_of(outside, "t1") == unanswered)
        assert 0.9 < time.monotonic() - began < 1.0 + ANYWAY_S / 3
