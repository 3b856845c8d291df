"""One run of the demo, phase after phase: what is done in which order, and what each phase leaves for the report."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from openclaw_rl.config import Config
from openclaw_rl.evaluation.conversations import ConversationOptions, Conversations
from openclaw_rl.evaluation.demo_options import DemoOptions
from openclaw_rl.evaluation.held_out import (
    EvaluationFailed,
    HeldOutAnswer,
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
from openclaw_rl.evaluation.settling import Settling, Standing, wait_until_settled
from openclaw_rl.evaluation.simulated_user import SimulatedUser
from openclaw_rl.evaluation.system_view import standing
from openclaw_rl.evaluation.talker import Talker, key_of, talker
from openclaw_rl.serving.engines.protocol import Engine
from openclaw_rl.store import Store
from openclaw_rl.supervision.deployment import Deployment, DeploymentError
from openclaw_rl.types import PolicyVersion

POLL_S = 0.5
LISTED_WITHIN_S = 30.0
"""The gateway lists a version about a second after it is in service."""
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
    settling: Settling | None = None
    asked_after: PolicyVersion | None = None
    """The version that was in service when the questions began to be asked again, and which answered all of them."""
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
        self._phase.counts = "questions to the base, told the preference"
        traffic = asyncio.create_task(self._traffic_until(client, settled))
        try:
            self.results.settling = await wait_until_settled(
                self._standing,
                standstill_s=self._options.settle_standstill_s,
                limit_s=self._options.settle_limit_s,
                poll_s=POLL_S,
                tell=self._tell_standing,
            )
            settled.set()
            await traffic
        finally:
            await _cancelled(traffic)

    async def _score_after(self, client: Talker) -> None:
        """The held-out questions again, all of them to the version that is in service now, whatever follows it."""
        version = await self._version_in_service(client)
        self.results.asked_after = version
        self._phase.detail = f"asking {version.name}"
        self.results.after = await self._ask(client, version.name)

    async def _version_in_service(self, client: Talker) -> PolicyVersion:
        """The version in service, once clients can ask for it by its name.

        Raises:
            EvaluationFailed: they cannot within `LISTED_WITHIN_S`.
        """
        deadline = time.monotonic() + LISTED_WITHIN_S
        while True:
            version = await asyncio.to_thread(self._store.versions.serving)
            listed = await client.models()
            if version.name in listed:
                return version
            if time.monotonic() > deadline:
                raise EvaluationFailed(f"{version.name} is in service, and the gateway lists {', '.join(listed)}")
            await asyncio.sleep(POLL_S)

    async def _measure_quality(self, client: Talker) -> None:
        """The answers' log-probability under the told base, beside that of its own answers."""
        results = self.results
        if results.told_base is None or results.after is None:
            return
        told, policy = results.told_base.answers, results.after.answers
        self._phase.counts = "answers read"

        async def read(answers: Sequence[HeldOutAnswer], before: int) -> float:
            def advance(done: int, _total: int) -> None:
                self._phase.advance(before + done, len(told) + len(policy))

            return await logprob_under_told_base(self._engine, answers, self._preference, on_answer=advance)

        results.told_base_nats = await read(told, 0)
        results.policy_nats = await read(policy, len(told))

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

    async def _standing(self) -> Standing:
        return await asyncio.to_thread(standing, self._store, self._config)

    def _tell_standing(self, found: Standing) -> None:
        self._phase.detail = f"waiting for {', '.join(found.pending)}" if found.pending else ""

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


def checkpoint_of(version: PolicyVersion) -> Path | None:
    """Where a version's weights lie; None for the base, and where they were pruned."""
    path = None if version.path is None else Path(version.path)
    return path if path is not None and path.is_dir() else None
