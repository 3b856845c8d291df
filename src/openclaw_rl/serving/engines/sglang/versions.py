"""Which versions a SGLang server has, who of this process uses them, and how they come and go.

A LoRA version is an adapter under a name of its own. SGLang goes on answering to a name that was unloaded (it loads
the adapter again, from where it was), and while it waits for the last request of an unloaded adapter it loads no
other. So a version that is to go is refused here at once, and unloaded there when the last request of this process
has ended.

Whole weights are replaced in place: generation pauses, the weights change, generation goes on. A request in flight
keeps what was computed with the old weights and draws its further tokens with the new ones; a new request shares no
prefix with it, since prefixes are shared under the name of the weights only.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.policy_files import Weights, WeightsKind
from openclaw_rl.serving.engines.model_text import ModelText
from openclaw_rl.serving.engines.protocol import (
    EngineError,
    EngineOverloaded,
    InvalidEngineRequest,
    UnknownVersion,
)
from openclaw_rl.serving.engines.sglang import wire
from openclaw_rl.serving.engines.weights_check import check_weights
from openclaw_rl.types import BASE_VERSION, PolicyVersion

logger = logging.getLogger(__name__)

_BUSY_UNLOADING = "incomplete unload"


class Ask(Protocol):
    """One question to the server."""

    def __call__(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> Awaitable[dict[str, Any]]:
        """The answer; EngineError where there is none."""
        ...


class Base(Protocol):
    """The base model."""

    async def get(self) -> ModelText:
        """Its text side, and its directory."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a server said when it was last looked at."""

    instance_id: str
    weights: str
    adapters: frozenset[int]
    context_length: int
    kept_tokens: int

    @property
    def version(self) -> int:
        """The version whose whole weights it has; 0 for the base."""
        return wire.version_of_weights(self.weights)

    @property
    def replaced(self) -> bool:
        """Whether the base's weights are gone: adapters that were trained on them mean nothing now."""
        return self.version != BASE_VERSION

    @property
    def salt(self) -> str | None:
        """Prefixes are shared under this name; None for the weights that the server was started with."""
        return None if self.weights == wire.UNTOUCHED else self.weights


class SglangVersions:
    """The versions of one server, for one event loop. `limit`: adapters that are kept."""

    def __init__(self, ask: Ask, *, base: Base, limit: int, timeout_s: float, quick_s: float) -> None:
        self._ask = ask
        self._base = base
        self._replacing = asyncio.Lock()
        self._limit = limit
        self._timeout_s = timeout_s
        self._quick_s = quick_s
        self._seen: Seen | None = None
        self._before: int | None = None
        self._users: Counter[int] = Counter()
        self._leaving: set[int] = set()
        self._clock = itertools.count(1)
        self._used: dict[int, int] = {}
        self._background: set[asyncio.Task[None]] = set()

    # --- looking -------------------------------------------------------------------------------------------

    async def look(self) -> Seen:
        """Ask the server what it has."""
        info = await self._ask("GET", "/server_info", None, self._quick_s)
        models = wire.models_of(await self._ask("GET", "/v1/models", None, self._quick_s))
        model = await self._ask("GET", "/model_info", None, self._quick_s)
        kept_tokens = info.get("sampling_mask_max_tokens")
        seen = Seen(
            instance_id=wire.instance_of(info),
            weights=str(model.get("weight_version")),
            adapters=models.adapters,
            context_length=models.context_length,
            kept_tokens=kept_tokens if isinstance(kept_tokens, int) else 0,
        )
        self._remember(seen)
        return seen

    def _remember(self, seen: Seen) -> None:
        before, self._seen = self._seen, seen
        if before is not None and before.instance_id != seen.instance_id:
            self._leaving.clear()
            self._before = None
        elif before is not None and before.weights != seen.weights:
            self._before = before.version
        for version in sorted(seen.adapters - self._used.keys()):
            self._used[version] = next(self._clock)

    def loaded(self, seen: Seen) -> tuple[int, ...]:
        """The versions that new requests may ask for."""
        if seen.replaced:
            return (seen.version,)
        return (BASE_VERSION, *sorted(seen.adapters - self._leaving))

    async def serving(self, version: int) -> Seen:
        """The server as it is known, after a second look if it does not seem to have `version`.

        Raises:
            UnknownVersion: it does not have it, or is about to let go of it.
        """
        seen = self._seen
        if seen is None or not self._has(seen, version):
            seen = await self.look()
        if not self._has(seen, version):
            raise UnknownVersion(f"policy version {version} is not loaded", param="model")
        return seen

    def _has(self, seen: Seen, version: int) -> bool:
        """Whole weights that were replaced a moment ago count: the request was on its way, and its tokens say so."""
        return version in self.loaded(seen) or (seen.replaced and version == self._before != BASE_VERSION)

    # --- using ---------------------------------------------------------------------------------------------

    @contextmanager
    def using(self, version: int) -> Iterator[None]:
        """Keep `version` for the time of a request."""
        self._users[version] += 1
        self._used[version] = next(self._clock)
        try:
            yield
        finally:
            self._users[version] -= 1
            self._used[version] = next(self._clock)
            if not self._users[version]:
                del self._users[version]
                if version in self._leaving:
                    self._later(self._let_go(version))
                self.tidy()

    def tidy(self) -> None:
        """Let go of adapters beyond the limit, those first that were not used for longest; never one in use."""
        if self._seen is None:
            return
        kept = self._seen.adapters - self._leaving
        unused = sorted((one for one in kept if one not in self._users), key=lambda one: self._used.get(one, 0))
        latest = max(kept, key=lambda one: self._used.get(one, 0), default=None)
        for version in unused[: max(0, len(kept) - self._limit)]:
            if version != latest:
                self._leaving.add(version)
                self._later(self._let_go(version))

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- coming --------------------------------------------------------------------------------------------

    async def load(self, version: PolicyVersion) -> None:
        """Load `version`; returns when requests may ask for it. One that is loaded stays as it is.

        Raises:
            InvalidEngineRequest: its files are broken or do not fit, or the server refuses them.
            EngineUnavailable, EngineOverloaded: not now.
        """
        seen = await self.look()
        base = (await self._base.get()).directory
        if version.path is None:
            if version.version != BASE_VERSION:
                raise InvalidEngineRequest(f"version {version.version} has no path", param="path")
            if seen.replaced:
                await self._replace(version, base)
            return
        if version.version in self.loaded(seen):
            return
        if version.version in seen.adapters and not seen.replaced:
            self._leaving.discard(version.version)
            return
        weights: Weights = await asyncio.to_thread(check_weights, Path(version.path), base)
        if weights.kind is WeightsKind.FULL:
            await self._replace(version, weights.directory)
        elif seen.replaced:
            raise InvalidEngineRequest(
                f"an adapter of the base, whose weights are gone: {version.name}", param="path"
            )
        else:
            await self._add(version, weights.directory)

    async def _add(self, version: PolicyVersion, directory: Path) -> None:
        """Load an adapter beside whatever is running."""
        body = {"lora_name": wire.adapter_name(version.version), "lora_path": _place(directory)}
        try:
            await self._ask("POST", "/load_lora_adapter", body, self._timeout_s)
        except InvalidEngineRequest as error:
            if _BUSY_UNLOADING in str(error):
                raise EngineOverloaded(f"{version.name} is still being unloaded") from error
            if version.version not in (await self.look()).adapters:  # nobody else has loaded it meanwhile
                raise
        else:
            await self.look()
        self._used[version.version] = next(self._clock)
        self.tidy()
        logger.info("loaded policy version %d", version.version)

    async def _replace(self, version: PolicyVersion, directory: Path) -> None:
        """Put whole weights in the place of those that the server has; one version at a time."""
        async with self._replacing:
            if (await self.look()).version != version.version:
                await self._paused(version, directory)
                await self.look()

    async def _paused(self, version: PolicyVersion, directory: Path) -> None:
        """Pause, replace, go on; going on is tried whatever happened in between."""
        body = {
            "model_path": _place(directory),
            "weight_version": wire.weights_name(version),
            "flush_cache": False,  # requests in flight need it; nobody else finds it under the new name
            "abort_all_requests": False,
        }
        try:
            await self._ask("POST", "/pause_generation", {"mode": "in_place"}, self._quick_s)
            answer = await self._ask("POST", "/update_weights_from_disk", body, self._timeout_s)
        finally:
            await asyncio.shield(self._go_on())
        logger.info("replaced the weights by those of %s: %s", version.name, answer.get("message"))

    async def _go_on(self) -> None:
        await self._ask("POST", "/continue_generation", {}, self._quick_s)

    # --- going ---------------------------------------------------------------------------------------------

    async def unload(self, version: int) -> None:
        """Refuse `version` from now on, and unload it when nobody of this process uses it; returns at once if so."""
        if version == BASE_VERSION or version in self._leaving:
            return
        seen = await self.look()
        if version not in seen.adapters:
            return
        self._leaving.add(version)
        if version not in self._users:
            await self._let_go(version)

    async def _let_go(self, version: int) -> None:
        """Unload an adapter of which nobody here makes use any more."""
        if version not in self._leaving or version in self._users:
            return
        try:
            await self._ask(
                "POST", "/unload_lora_adapter", {"lora_name": wire.adapter_name(version)}, self._timeout_s
            )
        except (InvalidEngineRequest, UnknownVersion):
            logger.info("policy version %d was unloaded by somebody else", version)
        except EngineError as error:
            logger.warning("policy version %d could not be unloaded (%s); trying again later", version, error.code)
            self._leaving.discard(version)
            return
        if self._seen is not None:
            self._seen = replace(self._seen, adapters=self._seen.adapters - {version})
        self._leaving.discard(version)
        self._used.pop(version, None)

    async def close(self) -> None:
        """Wait for what was begun behind the scenes."""
        await asyncio.gather(*self._background, return_exceptions=True)


def _place(directory: Path) -> str:
    """Where a directory is, for a server that works somewhere else."""
    return str(directory.absolute())
