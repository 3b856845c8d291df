"""The engine in its own process, behind the HTTP: checks requests, renders them, and listens to the scheduler."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.models import context_length, load_causal_lm, load_tokenizer, resolve_model
from openclaw_rl.serving.engines.embedded.adapters import AdapterPool
from openclaw_rl.serving.engines.embedded.jobs import GenerationJob, Job, JobEvent, ScoreJob
from openclaw_rl.serving.engines.embedded.runner import ModelRunner
from openclaw_rl.serving.engines.embedded.scheduler import Scheduler
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    EngineCapabilities,
    EngineError,
    EngineHealth,
    EngineUnavailable,
    Finished,
    InvalidEngineRequest,
    PromptRead,
    ScoreRequest,
    ScoreResult,
    TokensDrawn,
)
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.types import BASE_VERSION, Message, PolicyVersion

logger = logging.getLogger(__name__)

CAPABILITIES = EngineCapabilities(
    token_ids=True, logprobs=True, lora_versions=True, score=True, tools=True, full_weights=True
)


class EmbeddedService:
    """Implements `Engine` in the process that holds the model. Not ready until `start` has loaded the model."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._instance_id = uuid.uuid4().hex
        self._mailroom = _Mailroom()
        self.crashed = threading.Event()
        self._context = config.engine.context_length
        self._scheduler: Scheduler | None = None

    @property
    def capabilities(self) -> EngineCapabilities:
        """All of them."""
        return CAPABILITIES

    @property
    def active(self) -> int:
        """Requests in a slot."""
        return 0 if self._scheduler is None else self._scheduler.active

    @property
    def busy(self) -> int:
        """Requests in a slot or waiting for one."""
        scheduler = self._scheduler
        return 0 if scheduler is None else scheduler.active + scheduler.queued

    def load_model(self, threads: int) -> None:
        """Load model and tokenizer, make places for versions, start the compute thread. Takes seconds; blocks."""
        config, started = self._config, time.monotonic()
        path = resolve_model(config.model)
        self._tokenizer = load_tokenizer(path)
        self._renderer = Renderer(self._tokenizer)
        self._context = min(config.engine.context_length, context_length(path))
        model = load_causal_lm(path, config.dtype, config.model.device)
        self._end_tokens = end_tokens(model, self._tokenizer)
        self._adapters = AdapterPool(
            model,
            config.engine.max_versions,
            config.engine.max_full_versions,
            spare_last=not config.policies.owned,
        )
        self.runner = ModelRunner(model, self._adapters)
        scheduler = Scheduler(
            self.runner,
            self._adapters,
            parallel=config.engine.max_parallel,
            max_queue=config.serving.max_queue,
            chunk_tokens=config.engine.prefill_chunk_tokens,
            threads=threads,
            flush=self._mailroom.flush,
            on_crash=lambda error: self.crashed.set(),
        )
        scheduler.start()
        self._scheduler = scheduler
        took = time.monotonic() - started
        logger.info("model loaded on %s in %.1f s, context %d tokens", model.device.type, took, self._context)

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Generate; closing the iterator cancels.

        Raises:
            InvalidEngineRequest: the messages do not render, or leave no room in the context.
            EngineOverloaded, EngineUnavailable, UnknownVersion: as the protocol says.
        """
        scheduler = self._ready()
        prompt = await self.render(request.messages, request.tools)
        room = self._context - len(prompt)
        if room < 1:
            raise InvalidEngineRequest(
                f"the messages are {len(prompt)} tokens long, the context holds {self._context} with the answer",
                param="messages",
                code="context_length_exceeded",
            )
        mailbox = self._mailroom.open()
        job = GenerationJob(
            request,
            prompt=prompt,
            max_tokens=min(request.sampling.max_tokens, room),
            end_tokens=self._end_tokens,
            tokenizer=self._tokenizer,
            sink=mailbox.put,
        )
        scheduler.submit(job)
        try:
            yield PromptRead(prompt_ids=prompt)
            async for event in mailbox.events():
                if isinstance(event, PromptRead | TokensDrawn | Finished):
                    yield event
        finally:
            _abandon(scheduler, job)

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[Mapping[str, Any], ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """The token ids that the model would see."""
        self._ready()
        return await asyncio.to_thread(self._renderer.render, messages, tools, generation_prompt)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probabilities of given tokens."""
        scheduler = self._ready()
        if not 1 <= request.start < len(request.ids):
            raise InvalidEngineRequest("start lies between 1 and the number of ids, exclusively", param="start")
        if len(request.ids) > self._context:
            message = f"{len(request.ids)} ids do not fit into a context of {self._context}"
            raise InvalidEngineRequest(message, param="ids", code="context_length_exceeded")
        vocabulary = len(self._tokenizer)
        if not all(0 <= token < vocabulary for token in request.ids):
            raise InvalidEngineRequest(f"token ids lie between 0 and {vocabulary - 1}", param="ids")
        mailbox = self._mailroom.open()
        job = ScoreJob(request, sink=mailbox.put)
        scheduler.submit(job)
        try:
            async for event in mailbox.events():
                if isinstance(event, ScoreResult):
                    return event
        finally:
            _abandon(scheduler, job)
        raise EngineError("the engine gave no score")

    async def load_version(self, version: PolicyVersion) -> None:
        """Load a version; reading and checking happen beside the compute thread."""
        scheduler = self._ready()
        if version.version == BASE_VERSION:
            return
        if version.path is None:
            raise InvalidEngineRequest(f"version {version.version} has no path", param="path")
        path = Path(version.path)
        evicted = await asyncio.to_thread(self._adapters.load, version.version, path)
        await asyncio.to_thread(scheduler.forget, evicted)

    async def unload_version(self, version: int) -> None:
        """Unload a version as soon as nobody uses it."""
        await asyncio.to_thread(self._ready().unload, version)

    async def health(self) -> EngineHealth:
        """Ready once the model is loaded, and no longer after a crash."""
        scheduler = self._scheduler
        ready = scheduler is not None and scheduler.crash is None
        return EngineHealth(
            ready=ready,
            instance_id=self._instance_id,
            loaded_versions=self._adapters.loaded() if scheduler is not None else (),
            active_requests=0 if scheduler is None else scheduler.active,
            queued_requests=0 if scheduler is None else scheduler.queued,
            context_length=self._context,
        )

    async def close(self) -> None:
        """End the compute thread."""
        if self._scheduler is not None:
            await asyncio.to_thread(self._scheduler.stop)

    def _ready(self) -> Scheduler:
        if self._scheduler is None:
            raise EngineUnavailable("the engine is still loading its model")
        return self._scheduler


class _Mailbox:
    """What one job says, for one coroutine to hear."""

    def __init__(self, room: _Mailroom) -> None:
        self._room = room
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[JobEvent] = asyncio.Queue()

    def put(self, event: JobEvent) -> None:
        """From the compute thread: keep the event until the round is over."""
        self._room.keep(self, event)

    async def events(self) -> AsyncIterator[JobEvent]:
        """The events up to the last; an error is raised."""
        while True:
            event = await self.queue.get()
            if isinstance(event, EngineError):
                raise event
            yield event
            if isinstance(event, Finished | ScoreResult):
                return


class _Mailroom:
    """Delivers a round's events at once: one call into the event loop per round, not one per token."""

    def __init__(self) -> None:
        self._kept: list[tuple[_Mailbox, JobEvent]] = []

    def open(self) -> _Mailbox:
        """A mailbox for the running event loop."""
        return _Mailbox(self)

    def keep(self, mailbox: _Mailbox, event: JobEvent) -> None:
        """Compute thread only."""
        self._kept.append((mailbox, event))

    def flush(self) -> None:
        """Compute thread only: deliver what was kept."""
        kept, self._kept = self._kept, []
        for loop in {mailbox.loop for mailbox, _ in kept}:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, [(m, event) for m, event in kept if m.loop is loop])


def _deliver(events: list[tuple[_Mailbox, JobEvent]]) -> None:
    for mailbox, event in events:
        mailbox.queue.put_nowait(event)


def _abandon(scheduler: Scheduler, job: Job) -> None:
    if not job.done:
        scheduler.cancel(job)


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens after which an answer is over: those of the generation config, and the tokenizer's own."""
    configured = model.generation_config.eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    return frozenset(int(token) for token in [*listed, tokenizer.eos_token_id] if token is not None)
