"""The judging loop: claim turns whose next state is there, judge a few at once, record what came of it.

A claim is a lease, so that a judge that dies loses nothing (one that starts frees what a dead one held). A failure of
a turn's own is tried again after a pause, until `judge.max_attempts` make it a judgement that says FAILED. While what
the judge needs is down, the breaker is open: the work waits in the store and uses up no attempt, and `status` says
since when and until when. A turn that fails so again after others were judged is at fault itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from openclaw_rl.config import Config
from openclaw_rl.judging.base import Judge, JudgeError, JudgeUnavailable
from openclaw_rl.judging.breaker import CircuitBreaker
from openclaw_rl.judging.collapse import ScoreWatch
from openclaw_rl.judging.factory import build_judge
from openclaw_rl.judging.hint_candidates import screened
from openclaw_rl.judging.signals import by_signals_alone, weighed
from openclaw_rl.store import Store
from openclaw_rl.store.news import News
from openclaw_rl.store.outage import Patience, StoppedInOutage
from openclaw_rl.supervision.process import LoopReporter, ending_at_once
from openclaw_rl.types import Judgement, JudgementOutcome, LoopName, Turn

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 1.0
BEHIND_S = 0.5
"""A turn that met an outage is tried this much later than the others, so that one of these is the next probe."""


class JudgingLoop:
    """One judge at work on one store."""

    def __init__(self, config: Config, store: Store, judge: Judge, stop: threading.Event) -> None:
        self._config = config
        self._store = store
        self._judge = judge
        self._stop = stop
        self._news = News(store.changes)
        self._reporter = LoopReporter(store, LoopName.JUDGING)
        self._patience = Patience(stop, self._reporter.waiting)
        self._running: dict[asyncio.Task[None], str] = {}
        self._breaker = CircuitBreaker()
        self._watch = ScoreWatch(config.judge.collapse_window, votes=config.judge.votes)
        self._suspects: dict[str, int] = {}  # turns that met an outage, and how many had been judged by then
        self._judged = 0
        self._done = 0

    async def run(self) -> None:
        """Work until stopped; then give back what is not finished.

        First what a killed predecessor held is free again: it would lie there until its lease runs out.
        """
        try:
            returned = await self._stored(self._store.turns.release_judging_claims)
            if returned:
                log.info("%d turns that the judge before this one held are judged again", returned)
            while not self._stop.is_set():
                claimed = await self._claim()
                self._start(claimed)
                await self._say()
                await self._wait()
        except StoppedInOutage:
            log.warning("stopped while the record could not be used; the judge after this one frees what it holds")
        finally:
            await self._give_back()

    async def _stored(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """Make one call to the store, on another thread; where the record cannot be used, again until it can."""
        return await asyncio.to_thread(self._patience.until_done, functools.partial(call, *args, **options))

    async def _claim(self) -> list[tuple[Turn, int]]:
        free = self._breaker.allowance(self._config.judge.workers, len(self._running), time.time())
        if free <= 0:
            return []
        return await self._stored(self._claim_news, free)

    def _claim_news(self, free: int) -> list[tuple[Turn, int]]:
        """Claim at most so many; no table is asked where nothing can be there that was not a moment ago."""
        now = time.time()
        if not self._news.worth_a_look(now):
            return []
        claimed = self._store.turns.claim_for_judging(free, self._config.judge.lease_s)
        if not claimed:
            self._news.nothing_found(self._store.turns.next_lease_end(now))
        return claimed

    def _start(self, claimed: list[tuple[Turn, int]]) -> None:
        for turn, attempts in claimed:
            if turn.turn_id in self._running.values():  # its lease ran out while it was being given up
                continue
            self._running[asyncio.create_task(self._judge_turn(turn, attempts))] = turn.turn_id

    async def _say(self) -> None:
        details: dict[str, Any] = {"judged": self._done, "kind": self._judge.kind, "warning": self._watch.warning}
        outage = self._breaker.outage
        if outage is not None:
            details |= {"down_since": outage.since, "next_try_at": outage.next_try_at, "down_reason": outage.reason}
            await asyncio.to_thread(self._reporter.waiting, outage.sentence(time.time()), **details)
        elif self._running:
            activity = f"judging by {self._judge.kind}"
            await asyncio.to_thread(self._reporter.working, activity, now=len(self._running), **details)
        else:
            await asyncio.to_thread(self._reporter.waiting, "a turn with a next state", **details)

    async def _wait(self) -> None:
        pause = self._config.rollout.poll_interval_s
        if not self._running:
            await asyncio.sleep(pause)
            return
        done, _ = await asyncio.wait(self._running, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del self._running[task]
            task.result()  # a bug ends the process, whose supervisor starts another: it is never a verdict

    async def _judge_turn(self, turn: Turn, attempts: int) -> None:
        if attempts >= self._config.judge.max_attempts:  # its judges died, each without a word
            await self._record(failed(turn, self._judge, "abandoned", time.monotonic()))
            return
        if not turn.next_state:  # no words to judge: its signals brought it here
            await self._record(by_signals_alone(turn, self._config.judge.signals))
            return
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline_s()):
                judgement = await self._judge.judge(turn)
        except JudgeUnavailable as error:
            await self._unavailable(turn, attempts, error, started)
        except JudgeError as error:
            await self._retry(turn, attempts + 1, error.reason, started)
        except TimeoutError:
            await self._unavailable(turn, attempts, JudgeUnavailable("deadline", "the judge hangs"), started)
        else:
            await self._verdict(turn, judgement)

    def _deadline_s(self) -> float:
        """Between the turn's own deadline, which a judge of votes keeps itself, and the end of its lease."""
        return (self._config.judge.turn_timeout_s + self._config.judge.lease_s) / 2

    async def _verdict(self, turn: Turn, judgement: Judgement) -> None:
        self._judged += 1
        self._suspects.pop(turn.turn_id, None)
        ended = self._breaker.succeeded()
        if ended is not None:
            log.warning("the judge is back after %.0f s", time.time() - ended.since)
        if self._watch.saw(judgement, turn):
            log.warning("%s", self._watch.warning)
            await self._stored(self._store.status.count, "judge_scores_collapsed")
        await self._record(weighed(screened(judgement, turn), turn, self._config.judge.signals))

    async def _record(self, judgement: Judgement) -> None:
        await self._stored(self._store.turns.record_judgement, judgement)
        self._done += 1

    async def _retry(self, turn: Turn, attempts: int, reason: str, started: float) -> None:
        log.warning("judging turn %s failed (%s), attempt %d", turn.turn_id, reason, attempts)
        await self._stored(self._store.status.count, f"judge_failures_{reason}")
        if attempts >= self._config.judge.max_attempts:
            self._suspects.pop(turn.turn_id, None)
            await self._record(failed(turn, self._judge, reason, started))
            return
        await self._release(turn.turn_id, RETRY_S * 2 ** (attempts - 1), counts=True)

    async def _unavailable(self, turn: Turn, attempts: int, error: JudgeUnavailable, started: float) -> None:
        before = self._suspects.get(turn.turn_id)
        self._suspects[turn.turn_id] = self._judged
        if before is not None and before < self._judged:  # others were judged since: it is this turn
            await self._retry(turn, attempts + 1, error.reason, started)
            return
        now = time.time()
        begins = self._breaker.outage is None
        outage = self._breaker.failed(error.reason, now, error.retry_after_s)
        await self._stored(self._store.status.count, f"judge_unavailable_{error.reason}")
        if begins:
            await self._stored(self._store.status.count, "judge_outages")
            log.warning("the judge is down (%s): %s; turns wait in the store", error.reason, error)
        await self._release(turn.turn_id, outage.next_try_at - now + BEHIND_S, counts=False)

    async def _release(self, turn_id: str, retry_in_s: float, *, counts: bool) -> None:
        await self._stored(self._store.turns.release_from_judging, turn_id, retry_in_s=retry_in_s, counts=counts)

    async def _give_back(self) -> None:
        unfinished = {task: turn_id for task, turn_id in self._running.items() if not task.done()}
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        for task, turn_id in unfinished.items():
            if task.cancelled():
                with contextlib.suppress(StoppedInOutage):  # the next judge frees it when it starts
                    await self._release(turn_id, 0.0, counts=False)


def failed(turn: Turn, judge: Judge, reason: str, started: float) -> Judgement:
    """A judgement that says that there is none, and why."""
    return Judgement(
        turn_id=turn.turn_id,
        kind=judge.kind,
        outcome=JudgementOutcome.FAILED,
        score=None,
        hint=None,
        prompt_version=judge.prompt_version,
        latency_s=time.monotonic() - started,
        details={"reason": reason},
        created_at=time.time(),
    )


def run(config: Config, stop: threading.Event) -> None:
    """Run the loop until `stop` is set."""
    store = Store.open(config.store_path)
    try:
        LoopReporter(store, LoopName.JUDGING).working("loading the judge")
        with ending_at_once():
            if stop.is_set():  # a moment before
                return
            judge = build_judge(config)
        asyncio.run(_with_judge(config, store, judge, stop))
    finally:
        store.close()


async def _with_judge(config: Config, store: Store, judge: Judge, stop: threading.Event) -> None:
    try:
        await JudgingLoop(config, store, judge, stop).run()
    finally:
        await judge.close()
