"""One run of the demo, phase after phase: what is done in which order, and what each phase leaves for the report."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from openclaw_rl.config import Config
from openclaw_rl.evaluation.conversations import ConversationOptions, Conversations
from openclaw_rl.evaluation.demo_options import DemoOptions
from openclaw_rl.evaluation.held_out import (
    HeldOutOptions,
    HeldOutResult,
    ask_held_out,
    evaluation_ask,
)
from openclaw_rl.evaluation.ledger import Ledger, Purpose
from openclaw_rl.evaluation.live_view import PhaseProgress
from openclaw_rl.evaluation.preferences import PREFERENCES, Preference
from openclaw_rl.evaluation.quality import logprob_under_told_base
from openclaw_rl.evaluation.questions import HELD_OUT_QUESTIONS, TRAINING_QUESTIONS, Question
from openclaw_rl.evaluation.simulated_user import SimulatedUser
from openclaw_rl.evaluation.system_view import pending_work
from openclaw_rl.evaluation.talker import Talker, key_of, talker
from openclaw_rl.serving.engines.protocol import Engine
from openclaw_rl.store import Store
from openclaw_rl.supervision.deployment import Deployment, DeploymentError

POLL_S = 0.5
MANY_RESTARTS = 4
T = TypeVar("T")


@dataclass(kw_only=True, slots=True)
class RunResults:
    """What the phases found out; None until they have."""

    before: HeldOutResult | None = None
    after: HeldOutResult | None = None
    told_base: HeldOutResult | None = None
    told_base_nats: float | None = None
    policy_nats: float | None = None
    settled: bool = False
    pending: list[str] = field(default_factory=list)
    sessions_planned: int = 0
    phases_s: dict[str, float] = field(default_factory=dict)


class DemoRun:
    """The phases between a deployment that is ready and one that is no longer needed."""

    def __init__(
        self,
        options: DemoOptions,
        config: Config,
        deployment: Deployment,
        store: Store,
        engine: Engine,
        ledger: Ledger,
        phase: PhaseProgress,
    ) -> None:
        self._options = options
        self._config = config
        self._deployment = deployment
        self._store = store
        self._engine = engine
        self._ledger = ledger
        self._phase = phase
        self._preference: Preference = PREFERENCES[options.preference]
        self._questions: tuple[Question, ...] = HELD_OUT_QUESTIONS[: options.held_out]
        self.results = RunResults()

    async def run_and_close(self) -> None:
        """`run`, and let go of the engine whatever happens."""
        try:
            await self.run()
        finally:
            await self._engine.close()

    async def run(self) -> None:
        """All phases in order.

        Raises:
            DeploymentError: if the deployment ends under way.
            EvaluationFailed: if a held-out question gets no answer.
            EngineError: if the engine cannot score.
        """
        url = self._deployment.url
        key, timeout_s = key_of(self._config.serving), self._options.request_timeout_s
        async with talker(url, ledger=self._ledger, timeout_s=timeout_s, api_key=key) as client:
            phases = (
                ("held-out questions, before", self._score_before),
                ("conversations", self._converse),
                ("the last updates", self._settle),
                ("held-out questions, after", self._score_after),
                ("quality of the language", self._measure_quality),
            )
            for name, phase in phases:
                self._phase.start(name)
                started = time.monotonic()
                await self._watched(phase(client))
                self.results.phases_s[name] = time.monotonic() - started

    async def _score_before(self, client: Talker) -> None:
        """The held-out questions, put to the policy as it is before anybody has talked to it."""
        self.results.before = await self._ask(client, self._config.model.served_name)

    async def _converse(self, client: Talker) -> None:
        """The user's conversations; the system learns from them meanwhile."""
        options = self._options
        user = SimulatedUser(self._preference, random.Random(options.seed), minds_topic=not options.form_only)
        conversations = Conversations(
            client,
            user,
            ConversationOptions(
                model=self._config.model.served_name,
                interactions=options.interactions,
                threads=options.threads,
                temperature=options.temperature,
                max_tokens=options.max_tokens,
                words_per_second=options.words_per_second,
                seed=options.seed,
            ),
        )
        self.results.sessions_planned = conversations.sessions_planned
        await conversations.hold()

    async def _settle(self, client: Talker) -> None:
        """Let the last updates finish while the base, told the preference, answers the held-out questions.

        Those answers are needed anyway, and so the last publish, too, happens under open streams.
        """
        settled = asyncio.Event()
        traffic = asyncio.create_task(self._traffic_until(client, settled))
        try:
            await self._wait_until_settled()
            settled.set()
            await traffic
        finally:
            await _cancelled(traffic)

    async def _score_after(self, client: Talker) -> None:
        """The held-out questions again, put to the policy that is in service now."""
        self.results.after = await self._ask(client, self._config.model.served_name)

    async def _measure_quality(self, client: Talker) -> None:
        """The answers' log-probability under the told base, beside that of its own answers."""
        results = self.results
        if results.told_base is None or results.after is None:
            return
        for name, answers in (("told_base_nats", results.told_base.answers), ("policy_nats", results.after.answers)):
            value = await logprob_under_told_base(
                self._engine, answers, self._preference, on_answer=self._phase.advance
            )
            setattr(results, name, value)

    async def _ask(self, client: Talker, model: str, *, told: bool = False) -> HeldOutResult:
        """Put the held-out questions to a model."""
        options = self._options
        return await ask_held_out(
            client,
            model=model,
            preference=self._preference,
            questions=self._questions,
            options=HeldOutOptions(parallel=options.held_out_parallel, max_tokens=options.held_out_max_tokens),
            told=told,
            on_answer=self._phase.advance,
        )

    async def _traffic_until(self, client: Talker, settled: asyncio.Event) -> None:
        """The told base's answers, several at once; then one stream on and on."""
        self.results.told_base = await self._ask(client, "base", told=True)
        for question in itertools.cycle(TRAINING_QUESTIONS):
            if settled.is_set():
                return
            await client.ask(
                evaluation_ask(
                    self._config.model.served_name,
                    question,
                    question.text,
                    self._options.max_tokens,
                    Purpose.BYSTANDER,
                )
            )

    async def _wait_until_settled(self) -> None:
        """Wait until nothing is on its way into a version any more, saying what for; at most the settle timeout."""
        deadline = time.monotonic() + self._options.settle_timeout_s
        quiet = 0
        while quiet < 2:
            pending = await asyncio.to_thread(pending_work, self._store, self._config)
            quiet = 0 if pending else quiet + 1
            self.results.pending = pending
            self._phase.detail = f"waiting for {', '.join(pending)}" if pending else ""
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(POLL_S)
        self.results.settled = True

    def _check_deployment(self) -> None:
        """See whether there is still somebody to talk to and to learn.

        Raises:
            DeploymentError: if the deployment has ended, or a loop of it ends again and again.
        """
        state = self._deployment.state
        logs = self._config.logs_dir
        if not state.alive:
            raise DeploymentError(f"the deployment ended during: {self._phase.name}; see {logs / 'supervisor.log'}")
        for name in repeatedly_ended({name: child.restarts for name, child in state.children.items()}):
            raise DeploymentError(f"the {name} process ended {MANY_RESTARTS} times; see {logs / f'{name}.log'}")

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` for as long as the deployment lives.

        Raises:
            DeploymentError: if it ends first, or does not work.
        """
        task = asyncio.create_task(work)
        try:
            while True:
                finished, _ = await asyncio.wait({task}, timeout=POLL_S * 2)
                if finished:
                    return task.result()
                self._check_deployment()
        finally:
            await _cancelled(task)


def repeatedly_ended(restarts: Mapping[str, int], limit: int = MANY_RESTARTS) -> list[str]:
    """The loops that were started again `limit` times or more: there is no use in going on."""
    return [name for name, number in restarts.items() if number >= limit]


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """End a task that may still run, and wait for it; the outcome of one that has ended is its own affair."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait({task})


def version_marks(ledger: Ledger) -> tuple[tuple[int, int], ...]:
    """(place among the first answers, version) for the first answer that each new version gave."""
    marks: list[tuple[int, int]] = []
    newest = 0
    for place, entry in enumerate(ledger.first_answers, start=1):
        if entry.version is not None and entry.version > newest:
            newest = entry.version
            marks.append((place, newest))
    return tuple(marks)


def checkpoint_of(store: Store) -> Path | None:
    """The adapter directory of the version in service; None while that is the base."""
    path = store.versions.serving().path
    return None if path is None else Path(path)
