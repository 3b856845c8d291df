"""`VllmEngine`: the engine protocol, spoken to a vLLM server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.models import context_length, load_tokenizer, resolve_model
from openclaw_rl.policy_files import WeightsKind
from openclaw_rl.serving.engines.embedded.answer import AnswerText
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    EngineCapabilities,
    EngineError,
    EngineHealth,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
    PromptRead,
    ScoreRequest,
    ScoreResult,
    UnknownVersion,
    UnreadableVersion,
)
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.serving.engines.requirements import Situation
from openclaw_rl.serving.engines.vllm import wire
from openclaw_rl.serving.engines.vllm.api import VllmApi, VllmTookTooLong
from openclaw_rl.serving.engines.vllm.capabilities import CAPABILITIES, EXTENSION
from openclaw_rl.serving.engines.vllm.files import verify, version_weights
from openclaw_rl.serving.engines.vllm.healing import CacheHealing
from openclaw_rl.serving.engines.vllm.launch import BASE_NAME, SPARE_TOKENS
from openclaw_rl.serving.engines.vllm.probe import Found, check_fit, check_server, warn_of_another_model
from openclaw_rl.serving.engines.vllm.swap import ModelSwap
from openclaw_rl.serving.engines.vllm.versions import UNTOUCHED, LoadedVersions, Served, using, weights_name
from openclaw_rl.types import BASE_VERSION, Message, PolicyVersion

logger = logging.getLogger(__name__)


class VllmEngine:
    """Implements `Engine` against one vLLM server; for one event loop. Not ready until `start` has returned."""

    def __init__(self, config: Config, url: str, in_service: WeightsKind | None = None) -> None:
        """`url`: `http://HOST:PORT`, or `unix:///PATH`. `in_service`: the kind of version that it will be asked for
        first, None for the base."""
        self._config = config
        self._situation = Situation(config=config, in_service=in_service)
        self._found: Found | None = None
        self._api = VllmApi(
            url, request_timeout_s=config.serving.request_timeout_s, load_timeout_s=config.engine.load_timeout_s
        )
        self._context = config.engine.context_length
        self._versions = self._none_loaded()
        self._loading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._healing = CacheHealing(self._api.heal_cache)
        self._instance_id = uuid.uuid4().hex
        self._process_started: str | None = None
        self._active = 0
        self._ready = False
        self._lost = False

    @property
    def capabilities(self) -> EngineCapabilities:
        """All of them."""
        return CAPABILITIES

    @property
    def busy(self) -> int:
        """Requests that vLLM has, running or waiting."""
        return self._active

    @property
    def away(self) -> bool:
        """Whether vLLM did not answer when it was last looked at."""
        return self._lost

    # --- the beginning -----------------------------------------------------------------------------------------

    def load_tokenizer(self) -> None:
        """Read tokenizer and lengths of the model. Takes seconds; blocks."""
        self._model = resolve_model(self._config.model).absolute()
        self._swap = ModelSwap(self._api, self._model)
        self._tokenizer = load_tokenizer(self._model)
        self._renderer = Renderer(self._tokenizer)
        self._context = min(self._context, context_length(self._model))

    @property
    def context(self) -> int:
        """Prompt and answer together, tokens."""
        return self._context

    async def start(self) -> None:
        """Wait until vLLM answers, and check that it does what we need. Its caller sets the deadline.

        Raises:
            ConfigError: it lacks something; the message names it, and the argument that vLLM wants for it.
        """
        while True:
            try:
                await self._api.healthy()
                break
            except EngineError:
                await asyncio.sleep(0.2)
        self._found = await check_server(self._api, attached=bool(self._config.engine.urls))
        check_fit(self._found, self._situation, context=self._context)
        warn_of_another_model(self._found, self._config, self._model)
        self._versions = self._none_loaded()
        label = self._found.weights_label
        if label not in {None, UNTOUCHED}:
            self._versions.replace_model(None, str(label))
            logger.warning("vLLM holds the weights %s, which are not the model's own", label)
        self._process_started = await self._api.started_at()
        self._ready = True

    # --- generating --------------------------------------------------------------------------------------------

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Generate; closing the iterator closes the connection, at which vLLM aborts.

        Raises:
            InvalidEngineRequest: the messages do not render, or leave no room in the context.
            EngineOverloaded, EngineUnavailable, UnknownVersion: as the protocol says.
        """
        self._check_ready()
        prompt = await self.render(request.messages, request.tools)
        room = self._context - len(prompt)
        if room < 1:
            raise InvalidEngineRequest(
                f"the messages are {len(prompt)} tokens long, the context holds {self._context} with the answer",
                param="messages",
                code="context_length_exceeded",
            )
        sampling = request.sampling
        text = AnswerText(self._tokenizer, stop=sampling.stop, has_tools=bool(request.tools))
        answer = wire.AnswerEvents(text, prompt=prompt, truncated=sampling.truncated)
        await self._healing.clean()
        with self._counted(), self._serving(request.version) as served:
            self._drawer(request, served)
            salt = self._versions.salt
            body = wire.generate_body(
                prompt,
                sampling,
                model=served.model,
                max_tokens=min(sampling.max_tokens, room),
                salt=self._apart(salt),
            )
            async with contextlib.aclosing(self._api.generate(body)) as chunks:
                async for chunk in chunks:
                    if chunk is None:
                        yield PromptRead(prompt_ids=prompt, version=self._drawer(request, served))
                        continue
                    version, certain = self._draws(served.version), self._certain(served, salt)
                    label = self._versions.model_label
                    for event in answer.take(chunk, version=version, label=label, certain=certain):
                        yield event
                    if answer.finished:
                        return
        raise EngineError("vLLM ended the answer without finishing it")

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[Mapping[str, Any], ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """The token ids that the model would see."""
        self._check_ready()
        return await asyncio.to_thread(self._renderer.render, messages, tools, generation_prompt)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probabilities of given tokens.

        Raises:
            InvalidEngineRequest: also for a temperature other than 1, at which vLLM does not score.
            UnknownVersion: other weights would score, or have: one version's numbers are not told for another's.
        """
        self._check_ready()
        most = min(self._context, self._found.context - SPARE_TOKENS) if self._found else 0
        wire.check_score(request, most=most, vocabulary=len(self._tokenizer))
        await self._healing.clean()
        with self._counted(), self._serving(request.version) as served:
            salt = self._versions.salt
            body = wire.score_body(request.ids, model=served.model, salt=self._apart(salt))
            self._check_scores(served, request.version, salt)
            answer = await self._api.ask_whole(body)
            self._check_scores(served, request.version, salt)
            return ScoreResult(logprobs=wire.prompt_logprobs(answer, request.ids, request.start))

    def _check_scores(self, served: Served, version: int, salt: str | None) -> None:
        if self._versions.condemned(served):
            raise EngineError("the cache was healed while this was scored")
        if self._draws(served.version) != version or not self._certain(served, salt):
            raise UnknownVersion(f"policy version {version} is not loaded", param="version")

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        if self._active >= self._config.engine.max_parallel + self._config.serving.max_queue:
            raise EngineOverloaded("the engine's queue is full")
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1

    @contextlib.contextmanager
    def _serving(self, version: int) -> Iterator[Served]:
        """Keep a version for a request. If it turns out to give NaN, no other request gets it, nor its traces."""
        with using(self._versions, version, self._unload_soon) as served:
            try:
                yield served
            except wire.NoDistribution:
                what = "" if served.version is None else "; it is unloaded"
                logger.error("policy version %d gives NaN%s", version, what)
                self._versions.condemn(served)
                raise
            finally:
                if self._versions.condemned(served):
                    self._heal()

    def _heal(self) -> None:
        if self._found is None or self._found.weights_label is None:
            logger.error("vLLM's cache holds NaN, and it cannot be told to take them out: start it anew")
            self._healing.cannot()
        else:
            self._healing.begin()

    def _draws(self, adapter: int | None) -> int:
        """The version that draws at this moment."""
        if adapter is not None:
            return adapter
        if self._versions.model_version is None:
            raise EngineError("vLLM holds weights of no known version")
        return self._versions.model_version

    def _apart(self, salt: str | None) -> str | None:
        """What the prefix of a request that begins now is kept apart by: the swap's `salt`, and each healing.

        A server that outlives us also has prefixes of our earlier lives, and nobody remembers what became of them.
        """
        lives_on = self._instance_id if self._config.engine.urls else None
        healed = f"healed-{self._healing.passes}" if self._healing.passes else None
        return "-".join(part for part in (lives_on, salt, healed) if part is not None) or None

    def _certain(self, served: Served, salt: str | None) -> bool:
        """Whether what is drawn is its version's: nothing that it may have read was NaN, now healed; and no model was
        swapped beneath an adapter since the salt was `salt`, of which each swap has one of its own. The model's own
        tokens are told as whoever's draws them."""
        return not self._versions.condemned(served) and (served.version is None or salt == self._versions.salt)

    def _drawer(self, request: ChatRequest, served: Served) -> int | None:
        """The version that draws now, where it is not the one asked for: of a whole model, the one after it.

        Raises:
            UnknownVersion: no other may.
        """
        draws = self._draws(served.version)
        if draws == request.version:
            return None
        if request.pinned:
            raise UnknownVersion(f"policy version {request.version} is not loaded", param="model")
        return draws

    # --- versions ----------------------------------------------------------------------------------------------

    async def load_version(self, version: PolicyVersion) -> None:
        """Load an adapter under a name of its own, or swap the whole model while its streams wait.

        Raises:
            InvalidEngineRequest: its files are damaged, or vLLM does not take them.
            UnreadableVersion: vLLM does not see them.
            EngineOverloaded: there is no room for it now.
        """
        self._check_ready()
        async with self._loading:
            await self._swap.go_on()
            if version.version == BASE_VERSION:
                await self._restore_base()
                return
            if version.version == self._versions.model_version:
                return
            if self._versions.keep(version.version):
                await self._restore_base()
                return
            weights = await asyncio.to_thread(version_weights, version)
            if weights.kind is WeightsKind.LORA:
                self._versions.check_room()  # before the files are read: whoever waits for a place asks often
            modules = None if self._config.engine.urls else self._config.training.lora.target_modules
            await asyncio.to_thread(verify, weights, modules)
            if weights.kind is WeightsKind.LORA:
                await self._load_adapter(version.version, weights.directory)
            else:
                label = weights_name(version.version, weights.directory)
                await self._swap_model(version.version, weights.directory, label)

    async def unload_version(self, version: int) -> None:
        """Unload an adapter as soon as nobody uses it. A whole model stays until another takes its place."""
        name = self._versions.leave(version)
        if name is not None:
            await self._unload(name)

    async def _unload(self, name: str) -> None:
        async with self._loading:  # beside a load of the same one, that would find it there, and then not
            if not self._versions.has(name):
                await self._api.unload_lora(name)

    async def _load_adapter(self, version: int, directory: Path) -> None:
        await self._restore_base()  # what it was trained on; it would answer on whatever is there
        name = weights_name(version, directory)
        if name not in {card.get("id") for card in await self._api.models()}:
            evicted = self._versions.make_room()
            if evicted is not None:
                await self._api.unload_lora(evicted)
            try:
                await self._api.load_lora(name, directory)
            except (EngineUnavailable, VllmTookTooLong):
                raise
            except UnknownVersion as error:
                raise UnreadableVersion(f"vLLM must see the same files: {error}") from error
            except EngineError as error:
                await self._api.healthy()  # if vLLM itself is well, the adapter is at fault
                raise InvalidEngineRequest(f"vLLM does not load the adapter: {error}", param="path") from error
        self._versions.add(version, name)

    async def _restore_base(self) -> None:
        """Swap the model's own weights back in, where others have taken their place."""
        if self._versions.model_version != BASE_VERSION:
            await self._swap_model(BASE_VERSION, self._model, UNTOUCHED)

    async def _swap_model(self, version: int, directory: Path, label: str) -> None:
        if self._found is None or self._found.weights_label is None:
            message = (
                "this vLLM cannot swap whole models: start it with VLLM_SERVER_DEV_MODE=1 in its environment "
                f"and --worker-extension-cls {EXTENSION}"
            )
            raise InvalidEngineRequest(message, param="path")
        await self._swap.swap(self._versions, version, directory, label)

    def _unload_soon(self, name: str) -> None:
        """Unload an adapter whose last request has just ended."""

        async def unload() -> None:
            try:
                await self._unload(name)
            except EngineError as error:
                logger.warning("vLLM keeps the adapter %s (%s)", name, error.code)

        self._later(unload())

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside the requests; `close` gives it up."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- health ------------------------------------------------------------------------------------------------

    async def health(self) -> EngineHealth:
        """Whether vLLM lives, and what it still has. An adapter that is gone means that vLLM was started anew.

        Raises:
            EngineUnavailable: vLLM cannot be reached.
        """
        if self._ready:
            await self._look()
        return EngineHealth(
            ready=self._ready,
            instance_id=self._instance_id,
            loaded_versions=self._versions.loaded() if self._ready else (),
            active_requests=min(self._active, self._config.engine.max_parallel),
            queued_requests=max(0, self._active - self._config.engine.max_parallel),
            context_length=self._context,
        )

    async def _look(self) -> None:
        had = self._versions.adapters()  # what is loaded while vLLM makes its list is not missing in it
        try:
            await self._api.healthy()
            if self._swap.maybe_paused and not self._loading.locked():
                async with self._loading:  # never beside a swap: it could come after the next pause
                    await self._swap.go_on()
            cards = await self._api.models()
        except EngineError as error:
            self._lost = True
            raise EngineUnavailable(f"vLLM is not well: {error}") from error
        gone = self._versions.lost(had, frozenset(str(card.get("id")) for card in cards))
        if gone or self._lost:
            self._lost = False
            await self._recognise(gone)

    async def _recognise(self, gone: bool) -> None:
        """After an absence: is it the same process? Another one has the model's own weights and no adapters."""
        started = await self._api.started_at()
        if gone or started != self._process_started:
            logger.warning("vLLM was started anew; its versions are gone")
            self._process_started = started
            self._instance_id = uuid.uuid4().hex
            self._versions = self._none_loaded()
            self._swap.started_anew()

    def _none_loaded(self) -> LoadedVersions:
        """What a vLLM has that has just started."""
        return LoadedVersions(self._config.engine.max_versions, base=self._found.base if self._found else BASE_NAME)

    def _check_ready(self) -> None:
        if not self._ready:
            raise EngineUnavailable("vLLM is still starting")

    async def close(self) -> None:
        """Close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._healing.close()
        self._api.close()
