from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from openclaw_rl.config import Config, JudgeConfig, RolloutConfig
from openclaw_rl.judging.base import Judge, JudgeError
from openclaw_rl.judging.factory import build_judge
from openclaw_rl.judging.loop import RETRY_S, JudgingLoop, run
from openclaw_rl.store import Store
from openclaw_rl.store.news import ANYWAY_S
from openclaw_rl.testing.scripted_judge import ScriptedJudge
from openclaw_rl.types import Judgement, JudgementOutcome, LoopName, Turn, TurnState
from tests.builders import Conversation, make_config, user
from tests.outages import Lock, locked


def to_judge(store: Store, *texts: str) -> list[str]:
    """Turns in `judging` whose next states are these texts."""
    ids = []
    for number, text in enumerate(texts):
        turn_id = f"t{number}"
        Conversation(store).turn(turn_id)
        store.turns.move(turn_id, TurnState.AWAITING_NEXT_STATE)
        store.turns.set_next_state(turn_id, f"next{number}", [user(text)])
        ids.append(turn_id)
    return ids


def work(store: Store, config: Config, judge: Judge, done: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Run the loop until `done`, or fail."""
    stop = threading.Event()

    async def go() -> None:
        loop = asyncio.create_task(JudgingLoop(config, store, judge, stop).run())
        deadline = time.monotonic() + limit_s
        while not done() and time.monotonic() < deadline and not loop.done():
            await asyncio.wait([loop], timeout=0.02)
        stop.set()
        await loop

    asyncio.run(go())
    assert done()


def by_turn(store: Store) -> dict[str, Judgement]:
    return {judgement.turn_id: judgement for judgement in store.turns.judgements()}


def config_of(tmp_path: Path, **judge: Any) -> Config:
    return make_config(tmp_path, judge=JudgeConfig(kind="scripted", **judge))


def test_turns_are_judged_and_recorded(store: Store, tmp_path: Path) -> None:
    to_judge(store, "[good] yes", "[bad] hint: Be short.", "hm", "[tie]", "[too few]")
    work(store, config_of(tmp_path), ScriptedJudge(), lambda: len(store.turns.judgements()) == 5)
    found = by_turn(store)
    assert [found[f"t{n}"].score for n in range(5)] == [1.0, -1.0, 0.0, None, None]
    assert found["t1"].hint == "Be short."
    assert found["t3"].outcome is JudgementOutcome.TIE
    assert found["t4"].outcome is JudgementOutcome.TOO_FEW_VALID
    (status,) = [item for item in store.status.loops() if item.loop is LoopName.JUDGING]
    assert status.heartbeat_at > time.time() - 5


def test_failures_end_in_a_judgement_without_a_score(store: Store, tmp_path: Path) -> None:
    to_judge(store, "[fail]", "[good]")
    work(store, config_of(tmp_path, max_attempts=2), ScriptedJudge(), lambda: len(store.turns.judgements()) == 2)
    found = by_turn(store)
    assert found["t0"].outcome is JudgementOutcome.FAILED
    assert found["t0"].score is None
    assert found["t0"].details == {"reason": "scripted"}
    assert found["t1"].score == 1.0
    counters = store.status.counts().counters
    assert counters["judge_failures_scripted"] == 2
    assert counters["judge_retries"] == 1


class Flaky(ScriptedJudge):
    """Down for the first calls, then back."""

    def __init__(self, down: int) -> None:
        super().__init__()
        self.down = down
        self.seen = 0

    async def judge(self, turn: Turn) -> Judgement:
        self.seen += 1
        if self.seen <= self.down:
            return await ScriptedJudge({"": "unavailable"}).judge(turn)
        return await super().judge(turn)


def test_an_outage_uses_up_no_attempt(store: Store, tmp_path: Path) -> None:
    to_judge(store, "[good]", "[bad]")
    judge = Flaky(down=3)
    work(store, config_of(tmp_path, max_attempts=1), judge, lambda: len(store.turns.judgements()) == 2)
    assert {turn: judgement.score for turn, judgement in by_turn(store).items()} == {"t0": 1.0, "t1": -1.0}
    assert store.status.counts().counters["judge_unavailable_scripted"] == 3


def test_during_an_outage_status_says_so(store: Store, tmp_path: Path) -> None:
    to_judge(store, "[down]")

    def waits() -> bool:
        return any(
            status.waiting_for and "which is down since" in status.waiting_for for status in store.status.loops()
        )

    work(store, config_of(tmp_path), ScriptedJudge(), waits)
    assert store.turns.judgements() == []


class Hanging(ScriptedJudge):
    """Never answers."""

    async def judge(self, turn: Turn) -> Judgement:
        await asyncio.sleep(60)
        raise AssertionError("it should have been given up")


def test_a_judge_that_hangs_is_down_and_no_turn_is_at_fault(store: Store, tmp_path: Path) -> None:
    to_judge(store, "[good]")
    config = config_of(tmp_path, lease_s=0.6, turn_timeout_s=0.2, max_attempts=1)

    def given_up() -> bool:
        return store.status.counts().counters.get("judge_unavailable_deadline", 0) >= 2

    work(store, config, Hanging(), given_up)
    assert store.turns.judgements() == []


def test_stopping_gives_work_back_at_once(store: Store, tmp_path: Path) -> None:
    to_judge(store, "[good]")
    started = time.monotonic()
    work(store, config_of(tmp_path), Hanging(), lambda: time.monotonic() - started > 0.3)
    ((turn, attempts),) = store.turns.claim_for_judging(5, 60)
    assert (turn.turn_id, attempts) == ("t0", 0)


def test_a_turn_whose_judges_all_died_is_not_judged_for_ever(store: Store, tmp_path: Path) -> None:
    to_judge(store, "[good]")
    for _ in range(2):
        assert store.turns.claim_for_judging(1, 0.0)
        time.sleep(0.01)
    work(store, config_of(tmp_path, max_attempts=2), ScriptedJudge(), lambda: len(store.turns.judgements()) == 1)
    assert by_turn(store)["t0"].details == {"reason": "abandoned"}


def test_what_a_killed_judge_held_is_judged_at_once(store: Store, tmp_path: Path) -> None:
    to_judge(store, "[good]", "[bad]")
    ((held, _),) = store.turns.claim_for_judging(1, 600.0)  # and then SIGKILL
    work(store, config_of(tmp_path), ScriptedJudge(), lambda: len(store.turns.judgements()) == 2)
    assert by_turn(store)[held.turn_id].score == 1.0
    assert store.status.counts().counters["judge_leases_returned"] == 1


def test_giving_back_keeps_the_attempts(store: Store) -> None:
    to_judge(store, "[good]")
    store.turns.claim_for_judging(1, 600.0)
    assert store.turns.release_judging_claims() == 1
    assert store.turns.release_judging_claims() == 0
    ((_, attempts),) = store.turns.claim_for_judging(1, 600.0)
    assert attempts == 1


class Broken(ScriptedJudge):
    """Has a bug."""

    async def judge(self, turn: Turn) -> Judgement:
        raise ZeroDivisionError("a bug")


def test_a_bug_ends_the_loop_and_is_no_verdict(store: Store, tmp_path: Path) -> None:
    to_judge(store, "[good]")
    with pytest.raises(ZeroDivisionError):
        work(store, config_of(tmp_path), Broken(), lambda: False)
    assert store.turns.judgements() == []


def test_run_opens_the_store_and_stops(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with_store = Store.open(config.store_path)
    to_judge(with_store, "[good]")
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(config, stop))
    thread.start()
    deadline = time.monotonic() + 10
    while not with_store.turns.judgements() and time.monotonic() < deadline:
        time.sleep(0.02)
    stop.set()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert [judgement.score for judgement in with_store.turns.judgements()] == [1.0]
    with_store.close()


def test_the_factory_builds_what_is_asked(tmp_path: Path) -> None:
    assert build_judge(config_of(tmp_path)).kind == "scripted"
    assert build_judge(make_config(tmp_path, judge=JudgeConfig(kind="llm"))).kind == "llm"


def test_a_judgement_waits_for_a_record_that_is_locked(tmp_path: Path) -> None:
    """What the judge has thought is not thought again, and the loop does not end."""
    path = tmp_path / "store.sqlite"
    outside = Store.open(path)
    to_judge(outside, "[good] yes")
    store = Store.open(path, patience_s=0.1)
    lock = Lock(path)
    judged: list[str] = []

    class Locking(ScriptedJudge):
        """Takes the lock while it judges."""

        async def judge(self, turn: Turn) -> Judgement:
            judged.append(turn.turn_id)
            lock.take()
            threading.Timer(1.0, lock.release).start()
            return await super().judge(turn)

    work(store, config_of(tmp_path), Locking(), lambda: len(outside.turns.judgements()) == 1)
    assert judged == ["t0"]
    lock.close()
    store.close()
    outside.close()


def test_a_judge_that_is_stopped_during_an_outage_ends(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    Store.open(path).close()
    store = Store.open(path, patience_s=0.1)
    with locked(path):
        begun = time.monotonic()
        work(store, config_of(tmp_path), ScriptedJudge(), lambda: time.monotonic() > begun + 0.5)
        assert time.monotonic() - begun < 5.0
    store.close()


def test_a_hint_that_gives_the_answer_away_is_refused_and_counted(store: Store, tmp_path: Path) -> None:
    to_judge(store, '[bad] hint: Write "a poem is a short text of words that are chosen for their sound".')
    work(store, config_of(tmp_path), ScriptedJudge(), lambda: len(store.turns.judgements()) == 1)
    (judgement,) = store.turns.judgements()
    assert (judgement.score, judgement.hint) == (-1.0, None)
    assert judgement.details["hints_refused"] == {"quotes_answer": 1}
    assert store.status.counts().counters["hints_refused_quotes_answer"] == 1


def asked(store: Store) -> list[str]:
    """What is asked of the store from now on for turns to judge."""
    claims: list[str] = []

    def see(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if "judge_attempts" in statement and statement.startswith("SELECT"):
            claims.append(statement)

    event.listen(store._database._engine, "before_cursor_execute", see)
    return claims


class FailsOnce(ScriptedJudge):
    """So that the turn is tried again a second later."""

    seen = 0

    async def judge(self, turn: Turn) -> Judgement:
        self.seen += 1
        if self.seen == 1:
            raise JudgeError("scripted", "not yet")
        return await super().judge(turn)


def test_a_lease_that_ends_is_noticed_and_till_then_nothing_is_asked(store: Store, tmp_path: Path) -> None:
    to_judge(store, "[good]")
    claims, judge, began = asked(store), FailsOnce(), time.monotonic()
    config = make_config(tmp_path, judge=JudgeConfig(kind="scripted"), rollout=RolloutConfig(poll_interval_s=0.02))
    work(store, config, judge, lambda: len(store.turns.judgements()) == 1)
    assert judge.seen == 2
    assert RETRY_S <= time.monotonic() - began < RETRY_S + ANYWAY_S / 3, "nothing but the time told of it"
    assert 2 <= len(claims) <= 12, "of fifty polls all but a few had nothing new to look at"
