"""A judge's endpoint that fails: nothing is invented, nothing is lost, and the work goes on when it is back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config, JudgeConfig
from openclaw_rl.judging.factory import build_judge
from openclaw_rl.judging.loop import JudgingLoop
from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.store import Store
from openclaw_rl.types import JudgementOutcome, LoopName, LoopStatus, TurnState
from tests.builders import make_config, state_of
from tests.judging.judge_server import JudgeServer, judge_server
from tests.judging.test_loop import to_judge

DOWN = {
    "hanging": "timeout",
    "failing": "status_500",
    "dying_half_way": "connection",
    "refusing": "status_401",
}


def llm_config(tmp_path: Path, server: JudgeServer, **judge: Any) -> Config:
    values = {"votes": 2, "timeout_s": 0.4, "turn_timeout_s": 2.0, "max_retries": 0, "max_attempts": 1, **judge}
    return make_config(tmp_path, judge=JudgeConfig(kind="llm", base_url=server.url, **values))


def until(store: Store, config: Config, *phases: Callable[[], bool], limit_s: float = 15.0) -> None:
    """Run the judging loop, and the rollout loop's passes, until each phase is done, one after the other."""
    stop = threading.Event()
    left = list(phases)

    async def go() -> None:
        judge = build_judge(config)
        loop = asyncio.create_task(JudgingLoop(config, store, judge, stop).run())
        deadline = time.monotonic() + limit_s
        while left and time.monotonic() < deadline and not loop.done():
            await asyncio.to_thread(run_pass, store, config, time.time())
            await asyncio.wait([loop], timeout=0.02)
            if left[0]():
                del left[0]
        stop.set()
        await loop
        await judge.close()

    asyncio.run(go())
    assert not left


def said(store: Store) -> LoopStatus | None:
    return next((status for status in store.status.loops() if status.loop is LoopName.JUDGING), None)


def counters(store: Store) -> dict[str, int]:
    return dict(store.status.counts().counters)


@pytest.mark.parametrize("mode", sorted(DOWN))
def test_while_the_judge_is_down_work_waits_and_then_it_goes_on(mode: str, store: Store, tmp_path: Path) -> None:
    to_judge(store, "Thanks!", "Thank you.", "Great.")
    with judge_server() as server:
        server.mode = mode

        def down_for_a_while() -> bool:
            if counters(store).get(f"judge_unavailable_{DOWN[mode]}", 0) < 4:
                return False
            assert store.turns.judgements() == []
            assert store.samples.ready().count == 0
            assert {state_of(store, f"t{n}")[0] for n in range(3)} == {TurnState.JUDGING}
            report = said(store)
            assert report is not None
            assert report.waiting_for is not None
            assert f"down since {time.strftime('%H:')}" in report.waiting_for
            assert f"({DOWN[mode]})" in report.waiting_for
            assert report.details["next_try_at"] > report.details["down_since"]
            server.mode = "well"
            return True

        until(store, llm_config(tmp_path, server), down_for_a_while, lambda: store.samples.ready().count == 3)
    assert [judgement.score for judgement in store.turns.judgements()] == [1.0] * 3
    counted = counters(store)
    assert not [name for name in counted if name.startswith("judge_failures")]
    assert counted["judge_outages"] == 1


@pytest.mark.parametrize(("mode", "problem"), [("babbling", "no_verdict"), ("no_api", "empty_reply")])
def test_nonsense_is_no_verdict_and_no_sample(mode: str, problem: str, store: Store, tmp_path: Path) -> None:
    to_judge(store, "Thanks!")
    with judge_server() as server:
        server.mode = mode
        until(store, llm_config(tmp_path, server), lambda: state_of(store, "t0")[0] is TurnState.EXCLUDED)
    (judgement,) = store.turns.judgements()
    assert (judgement.outcome, judgement.score) == (JudgementOutcome.TOO_FEW_VALID, None)
    assert judgement.details["problems"] == {problem: 2}
    assert state_of(store, "t0") == (TurnState.EXCLUDED, "too_few_valid_votes")
    assert store.samples.ready().count == 0
    assert counters(store)["judgements_too_few_valid"] == 1


def test_one_turn_that_breaks_the_endpoint_does_not_hold_up_the_others(store: Store, tmp_path: Path) -> None:
    """The oldest turn is the one that kills: it is at fault once others were judged after it."""
    to_judge(store, "POISON", "Thanks!", "Great.")

    with judge_server() as server:
        handler: Any = server._server.RequestHandlerClass
        well = handler.be_well

        def choosy(self: Any, body: dict[str, Any]) -> None:
            if "POISON" in body["messages"][-1]["content"]:
                self.be_failing(body)
            else:
                well(self, body)

        handler.be_well = choosy
        config = llm_config(tmp_path, server, workers=1)
        until(store, config, lambda: len(store.turns.judgements()) == 3)
    found = {judgement.turn_id: judgement for judgement in store.turns.judgements()}
    assert [found["t1"].score, found["t2"].score] == [1.0, 1.0]
    assert found["t0"].outcome is JudgementOutcome.FAILED
    assert found["t0"].details == {"reason": "status_500"}
    assert counters(store)["judge_failures_status_500"] == 1
