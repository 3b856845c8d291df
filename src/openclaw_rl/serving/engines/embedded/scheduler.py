"""The compute thread: requests join and leave between two forward passes, and nobody waits for a long prompt.

Each round reads one more token of every answer being written, and a piece of the prompts and scored texts that wait
(`budget`), whoever they belong to. So a prompt delays a stream by one piece of itself, never by its length. A round
is one forward pass, whatever policy versions take part in it.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import torch
from torch import Tensor

from openclaw_rl.serving.engines.embedded.adapters import AdapterPool
from openclaw_rl.serving.engines.embedded.cache import SlotPool
from openclaw_rl.serving.engines.embedded.jobs import GenerationJob, Job
from openclaw_rl.serving.engines.embedded.runner import ModelRunner, Piece
from openclaw_rl.serving.engines.embedded.sampling import Drawn, NonFiniteLogits, draw_all
from openclaw_rl.serving.engines.protocol import EngineError, EngineOverloaded, EngineUnavailable

logger = logging.getLogger(__name__)

SCORING_SLOTS = 2
"""Texts scored at once, beside the answers: a judge never takes a slot from a conversation, nor is taken one."""
ALONE = 4
"""So many times the piece of a prompt is read where no answer is being written."""
PER_STREAM = 2
"""Tokens that every answer being written adds to the piece of a prompt that is read beside it."""
SCORES_FIRST_EVERY = 4
"""In every so many rounds texts to score come before prompts, so that a busy gateway cannot starve the judge."""


class Scheduler:
    """Owns the compute thread. `submit`, `cancel` and `between_steps` may be called from any thread."""

    def __init__(
        self,
        runner: ModelRunner,
        adapters: AdapterPool,
        *,
        parallel: int,
        max_queue: int,
        chunk_tokens: int,
        threads: int,
        flush: Callable[[], None] = lambda: None,
        on_crash: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._runner = runner
        self._adapters = adapters
        self._slots = SlotPool(runner.shape, parallel + SCORING_SLOTS)
        self._parallel = parallel
        self._max_queue = max_queue
        self._chunk_tokens = chunk_tokens
        self._threads = threads
        self._flush = flush
        self._on_crash = on_crash
        self._wake = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._calls: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._active: list[Job] = []
        self._rounds = 0
        self._stopping = False
        self.crash: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine-compute", daemon=True)

    # --- from any thread

    def start(self) -> None:
        """Start the compute thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the thread after the pass it is in; unfinished jobs fail."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)

    @property
    def active(self) -> int:
        """Jobs in a slot."""
        return len(self._active)

    @property
    def queued(self) -> int:
        """Jobs waiting for a slot."""
        return len(self._waiting)

    def submit(self, job: Job) -> None:
        """Queue `job`; it holds its version from now on.

        Raises:
            EngineOverloaded: the queue is full.
            EngineUnavailable: the thread has ended.
            UnknownVersion: the job's version is not loaded.
        """
        with self._wake:
            if self._stopping or self.crash is not None:
                raise EngineUnavailable("the engine is stopping")
            if self._is_full_for(job):
                raise EngineOverloaded(f"{self._max_queue} requests are waiting already")
            self._adapters.acquire(job.version)
            self._waiting.append(job)
            self._wake.notify()

    def _is_full_for(self, job: Job) -> bool:
        """Whether as many wait as may. Who finds a slot before the next pass does not wait, however many come at
        once."""
        left = self._room()
        for waiting in self._waiting:
            left[isinstance(waiting, GenerationJob)] -= 1
        without_slot = sum(max(0, -places) for places in left.values())
        return left[isinstance(job, GenerationJob)] <= 0 and without_slot >= self._max_queue

    def _room(self) -> dict[bool, int]:
        """Free slots: for answers (True), for scored texts (False)."""
        room = {True: self._parallel, False: SCORING_SLOTS}
        for job in list(self._active):
            room[isinstance(job, GenerationJob)] -= 1
        return room

    def cancel(self, job: Job) -> None:
        """Nobody waits for `job` any more: its slot is free before the next pass."""
        job.cancelled = True
        with self._wake:
            self._wake.notify()

    def unload(self, version: int) -> None:
        """Unload `version` once no job uses it, and forget what was computed under it."""
        if self._adapters.unload(version):
            self.forget([version])

    def forget(self, versions: Sequence[int]) -> None:
        """Forget what was computed under versions that are gone."""
        for version in versions:
            self.between_steps(partial(self._slots.forget, version))

    def between_steps(self, function: Callable[[], None], timeout_s: float = 30.0) -> None:
        """Run `function` in the compute thread between two passes, and wait for it.

        Raises:
            EngineUnavailable: the thread has ended.
        """
        future: Future[None] = Future()
        with self._wake:
            if self._stopping or self.crash is not None:
                raise EngineUnavailable("the engine is stopping")
            self._calls.append((function, future))
            self._wake.notify()
        future.result(timeout_s)

    # --- the compute thread

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            while self._wait_for_work():
                self._drop_cancelled()
                self._admit()
                self._round()
                self._flush()
        except Exception as error:
            logger.exception("the compute thread ended")
            self.crash = error
            self._fail_all(EngineError(f"the engine's computation failed: {type(error).__name__}"))
            self._on_crash(error)
        else:
            self._fail_all(EngineUnavailable("the engine is stopping"))

    def _wait_for_work(self) -> bool:
        """Run what others want done between passes; False when it is time to end."""
        while True:
            with self._wake:
                while not (self._calls or self._waiting or self._active or self._stopping):
                    self._wake.wait()
                if self._stopping:
                    return False
                calls = list(self._calls)
                self._calls.clear()
            for function, future in calls:
                _complete(function, future)
            if self._waiting or self._active:
                return True

    def _drop_cancelled(self) -> None:
        for job in [job for job in self._active if job.cancelled]:
            self._leave(job)
        with self._wake:
            gone = [job for job in self._waiting if job.cancelled]
            for job in gone:
                self._waiting.remove(job)
        for job in gone:
            self._release_version(job)

    def _admit(self) -> None:
        """Give waiting jobs their slots, in order, answers and scored texts each within their own number."""
        with self._wake:
            room = self._room()
            admitted = []
            for job in self._waiting:
                if room[isinstance(job, GenerationJob)] > 0:
                    room[isinstance(job, GenerationJob)] -= 1
                    admitted.append(job)
            for job in admitted:
                self._waiting.remove(job)
            self._active += admitted
        for job in admitted:
            job.slot = self._slots.take(job.tokens, job.version, job.reusable)
            job.slot.reserve(len(job.tokens))

    def _round(self) -> None:
        self._rounds += 1
        scores_first = self._rounds % SCORES_FIRST_EVERY == 0
        plan = plan_round(self._active, self._chunk_tokens, scores_first=scores_first)
        if plan:
            self._step(sorted(plan, key=_place))

    def _step(self, plan: Sequence[tuple[Job, int]]) -> None:
        pieces = []
        for job, length in plan:
            if job.slot is None:
                raise RuntimeError("a job without a slot was planned")
            tokens = job.tokens[job.read : job.read + length]
            pieces.append(Piece(slot=job.slot, version=job.version, tokens=tokens, wanted=job.wanted(length)))
        self._use([(job, logits) for (job, _), logits in zip(plan, self._runner.forward(pieces), strict=True)])

    def _use(self, read: Sequence[tuple[Job, Tensor]]) -> None:
        """Draw the next tokens of all answers at once, and let every job go on with what it got."""
        answers = [(job, logits) for job, logits in read if isinstance(job, GenerationJob) and len(logits)]
        drawn: list[Drawn | None] = []
        if answers:
            drawn = draw_all(torch.cat([logits for _, logits in answers]), [job.wish for job, _ in answers])
        uses: list[tuple[Job, Callable[[], None]]] = [
            (job, partial(job.accept, choice)) for (job, _), choice in zip(answers, drawn, strict=True)
        ]
        uses += [(job, partial(job.take, logits)) for job, logits in read if not isinstance(job, GenerationJob)]
        for job, use in uses:
            try:
                use()
            except NonFiniteLogits as error:
                self._give_up(job, f"policy version {job.version}: {error}")
            except Exception as error:  # noqa: BLE001 - what one answer cannot do ends none of the others
                where = "".join(traceback.format_tb(error.__traceback__))  # without its words, which may quote a text
                logger.error("a request failed: %s\n%s", type(error).__name__, where)
                self._give_up(job, f"the engine cannot go on with this answer ({type(error).__name__})")
            if job.done:
                self._leave(job)

    @staticmethod
    def _give_up(job: Job, why: str) -> None:
        if job.slot is not None:
            job.slot.clear()
        job.fail(EngineError(why))

    def _leave(self, job: Job) -> None:
        self._active.remove(job)
        if job.slot is not None:
            self._slots.release(job.slot)
        self._release_version(job)

    def _release_version(self, job: Job) -> None:
        if self._adapters.release(job.version):
            self._slots.forget(job.version)

    def _fail_all(self, error: EngineError) -> None:
        with self._wake:
            jobs = [*self._active, *self._waiting]
            self._active, self._stopping = [], True
            self._waiting.clear()
            calls = list(self._calls)
            self._calls.clear()
        for job in jobs:
            self._adapters.release(job.version)
            job.fail(error)
        for _, future in calls:
            future.set_exception(error)
        self._flush()


def plan_round(jobs: Sequence[Job], chunk_tokens: int, *, scores_first: bool) -> list[tuple[Job, int]]:
    """What the next round reads: (job, number of tokens).

    Every job with a single unread token takes part (answers being written); the others share a budget, in the order
    of their arrival, answers before scored texts unless `scores_first`.
    """
    plan = [(job, 1) for job in jobs if job.unread == 1]
    reading = [job for job in jobs if job.unread > 1]
    reading.sort(key=lambda job: isinstance(job, GenerationJob) is scores_first)
    left = budget(chunk_tokens, len(plan))
    for job in reading:
        if left > 0:
            plan.append((job, min(job.unread, left)))
            left -= min(job.unread, left)
    return plan


def budget(chunk_tokens: int, streams: int) -> int:
    """Tokens of prompts and scored texts that a round beside `streams` answers may read.

    A pass costs a share for reading the weights, whatever it computes, and a share for each token. The more answers
    take part, the longer a round is without any prompt; what a prompt may add grows with it, so that a round stays
    within a few times of what it would be. Without any answer there is nobody whom a long piece could keep waiting.
    """
    return (ALONE if streams == 0 else 1) * chunk_tokens + PER_STREAM * streams


def _place(planned: tuple[Job, int]) -> tuple[int, bool, int]:
    """In the packed row: by version (one product for each), next tokens before pieces, by slot."""
    job, length = planned
    return job.version, length > 1, 0 if job.slot is None else job.slot.index


def _complete(function: Callable[[], None], future: Future[None]) -> None:
    """Run a caller's function; its error is the caller's, not the compute thread's."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 - handed to the caller, who is waiting for it
        future.set_exception(error)
    else:
        future.set_result(None)
