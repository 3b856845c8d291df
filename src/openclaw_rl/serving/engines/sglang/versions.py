"""Which versions a SGLang server has, who of this process uses them, and how they come and go.

A LoRA version is an adapter under a name of its own, which holds a digest of its manifest: what else a server has,
of other deployments, is neither used nor unloaded. SGLang goes on answering to a name that was unloaded (it loads the
adapter again, from where it was), and while it waits for the last request of an unloaded adapter it loads no other.
So a version that is to go is refused here at once, and unloaded there when the last request of this process has
ended.

Whole weights are replaced in place: generation pauses, the weights change, generation goes on. A request in flight
keeps what was computed with the old weights and draws its further tokens with the new ones; a new request shares no
prefix with it, since prefixes are shared under the name of the weights only. Meanwhile new requests wait here, to be
sent under the new name. Those that still come for the version before are answered for a while by its successor, and
each token is recorded as the one's who drew it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from openclaw_rl.policy_files import WeightsKind
from openclaw_rl.serving.engines.protocol import (
    EngineError,
    EngineOverloaded,
    InvalidEngineRequest,
    UnknownVersion,
)
from openclaw_rl.serving.engines.sglang import wire
from openclaw_rl.serving.engines.sglang.seen import Ask, Base, Seen, Served
from openclaw_rl.serving.engines.weights_check import check_weights, identify
from openclaw_rl.types import BASE_VERSION, PolicyVersion, VersionState

logger = logging.getLogger(__name__)

GRACE_S = 10.0
"""How long requests for whole weights that were replaced are answered by their successor."""
_BUSY_UNLOADING = "incomplete unload"
_BASE = PolicyVersion(version=BASE_VERSION, state=VersionState.SERVING, path=None, step=0, created_at=0.0)


class SglangVersions:
    """The versions of one server, for one event loop. `limit`: adapters that are kept."""

    def __init__(
        self,
        ask: Ask,
        *,
        base: Base,
        limit: int,
        timeout_s: float,
        quick_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._base = base
        self._limit = limit
        self._timeout_s = timeout_s
        self._quick_s = quick_s
        self._clock = clock
        self.known: dict[str, int] = {wire.UNTOUCHED: BASE_VERSION}
        """The versions of whole weights, by the names that we gave them, or found to be theirs."""
        self.doubted: set[str] = set()
        """Of these names those that may be of other weights by now: a replacement failed somewhere in between."""
        self._names: dict[int, str] = {}
        self._seen: Seen | None = None
        self._changes = 0
        self._loading = asyncio.Lock()
        self._settled = asyncio.Event()
        self._settled.set()
        self._resuming = asyncio.Lock()
        self._maybe_paused = True  # whoever spoke for it before us may have been killed in the middle
        self._replaced: tuple[int, float] | None = None
        self._users: Counter[int] = Counter()
        self._leaving: set[int] = set()
        self._uses = itertools.count(1)
        self._used: dict[int, int] = {}
        self._background: set[asyncio.Task[None]] = set()

    # --- looking -------------------------------------------------------------------------------------------

    async def look(self) -> Seen:
        """Ask the server what it has; a server that may still be paused is told to go on before.

        What a look says that was overtaken by a change of ours is old, and not heeded.
        """
        await self._resume()
        changes = self._changes
        info = await self._ask("GET", "/server_info", None, self._quick_s)
        models = wire.models_of(await self._ask("GET", "/v1/models", None, self._quick_s))
        model = await self._ask("GET", "/model_info", None, self._quick_s)
        seen = Seen.of(info, models, model)
        if self._seen is not None and changes != self._changes:
            return self._seen
        self._remember(seen)
        return seen

    @property
    def replacing(self) -> bool:
        """Whether weights are being replaced: the server answers nobody now, and that is no fault."""
        return not self._settled.is_set()

    @property
    def seen(self) -> Seen | None:
        """What it had when it was last looked at."""
        return self._seen

    def _remember(self, seen: Seen) -> None:
        before, self._seen = self._seen, seen
        if before is not None and before.instance_id != seen.instance_id:
            self._leaving.clear()
            self.doubted.clear()
            self._replaced = None
        elif before is not None and before.weights != seen.weights and before.weights in self.known:
            self._replaced = (self.known[before.weights], self._clock() + GRACE_S)
        if wire.is_of(seen.weights, _BASE, ""):
            self.known[seen.weights] = BASE_VERSION
        if seen.weights not in self.known and (before is None or before.weights != seen.weights):
            logger.warning("SGLang holds the weights %.80s, which nobody here has loaded", seen.weights)
        self._names = {version: name for version, name in self._names.items() if name in seen.adapters}

    def _changed(self, **fields: Any) -> None:
        """The server has changed as it was told to; a look that began before knows nothing of it."""
        self._changes += 1
        if self._seen is not None:
            self._remember(replace(self._seen, **fields))

    def loaded(self) -> tuple[int, ...]:
        """The versions that the server has: its own weights', and where those are the base's, adapters."""
        own = None if self._seen is None else self.known.get(self._seen.weights)
        if self._seen is None or own is None or self._seen.weights in self.doubted:
            return ()
        adapters = self._names.keys() - self._leaving if own == BASE_VERSION else ()
        return (own, *sorted(adapters))

    def answered(self) -> tuple[int, ...]:
        """The versions that new requests may ask for."""
        loaded, gracious = self.loaded(), self._gracious()
        return loaded if gracious is None or not loaded else tuple(sorted({*loaded, gracious}))

    def _gracious(self) -> int | None:
        """The whole weights before these, while requests for them are still on their way."""
        return None if self._replaced is None or self._clock() >= self._replaced[1] else self._replaced[0]

    async def serving(self, version: int, *, pinned: bool = False) -> Served:
        """Who answers a request for `version`, after a second look if the server does not seem to have it.

        Waits while weights are being replaced. `pinned`: no other version may answer.

        Raises:
            UnknownVersion: the server does not have it, or is about to let go of it.
        """
        await self._settled.wait()
        served = self._served(version, pinned)
        if served is None:
            await self.look()
            await self._settled.wait()
            served = self._served(version, pinned)
        if served is None:
            raise UnknownVersion(f"policy version {version} is not loaded", param="model")
        return served

    def _served(self, version: int, pinned: bool) -> Served | None:
        loaded, seen = self.loaded(), self._seen
        if seen is None or not loaded:
            return None
        own, *adapters = loaded
        if version in adapters:
            return Served(version=version, adapter=self._names[version], seen=seen)
        if version == own or (not pinned and version == self._gracious()):
            return Served(version=own, adapter=None, seen=seen)
        return None

    # --- using ---------------------------------------------------------------------------------------------

    @contextmanager
    def using(self, version: int) -> Iterator[None]:
        """Keep `version` for the time of a request."""
        self._users[version] += 1
        self._used[version] = next(self._uses)
        try:
            yield
        finally:
            self._users[version] -= 1
            self._used[version] = next(self._uses)
            if not self._users[version]:
                del self._users[version]
                if version in self._leaving:
                    self._later(self._let_go(version))
                self.tidy()

    def tidy(self) -> None:
        """Let go of adapters beyond the limit, those first that were not used for longest; never one in use."""
        kept = self._names.keys() - self._leaving
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
        if version.path is None and version.version != BASE_VERSION:
            raise InvalidEngineRequest(f"version {version.version} has no path", param="path")
        async with self._loading:
            seen = await self.look()
            base = (await self._base.get()).directory
            if version.path is None:
                await self._have_weights(seen, _BASE, base, digest="")
                return
            weights, digest = await asyncio.to_thread(identify, Path(version.path))
            if weights.kind is WeightsKind.FULL:
                await self._have_weights(seen, version, base, digest=digest)
                return
            await self._have_weights(seen, _BASE, base, digest="")  # an adapter lies over the base
            await self._have_adapter(version, base, wire.adapter_name(version, digest))

    async def _have_adapter(self, version: PolicyVersion, base: Path, name: str) -> None:
        """Load an adapter beside whatever is running, unless it is there."""
        if version.version not in self._names:
            self._check_room()  # before the files are read: whoever waits for a place asks often
        if self._seen is None or name not in self._seen.adapters:
            weights = await asyncio.to_thread(check_weights, Path(version.path or ""), base)
            await self._add(name, weights.directory)
            logger.info("loaded policy version %d", version.version)
        self._names[version.version] = name
        self._leaving.discard(version.version)
        self._used[version.version] = next(self._uses)
        self.tidy()

    def _check_room(self) -> None:
        """Return if another adapter can have a place; inside SGLang it would wait for one, and tell nobody.

        Raises:
            EngineOverloaded: as many as may be kept are in use.
        """
        if len(self._names.keys() & self._users.keys()) >= self._limit:
            raise EngineOverloaded(f"all {self._limit} loaded versions are in use")

    async def _add(self, name: str, directory: Path) -> None:
        body = {"lora_name": name, "lora_path": _place(directory)}
        try:
            await self._ask("POST", "/load_lora_adapter", body, self._timeout_s)
        except InvalidEngineRequest as error:
            if _BUSY_UNLOADING in str(error):
                raise EngineOverloaded(f"{name} is still being unloaded") from error
            if name not in (await self.look()).adapters:  # an earlier try was slower than we waited
                raise
        if self._seen is not None:
            self._changed(adapters=self._seen.adapters | {name})

    async def _have_weights(self, seen: Seen, version: PolicyVersion, base: Path, *, digest: str) -> None:
        """Put whole weights in the place of those that the server has, unless it has these.

        Raises:
            InvalidEngineRequest: also where the server could not say exactly which tokens they draw. The base is put
                back all the same: none of our whole models can have answered there.
        """
        if version.version != BASE_VERSION and seen.no_swaps:
            raise InvalidEngineRequest(seen.no_swaps, param="path")
        base_there = version.version == BASE_VERSION == self.known.get(seen.weights)
        if seen.weights not in self.doubted and (base_there or wire.is_of(seen.weights, version, digest)):
            self.known[seen.weights] = version.version
            return
        directory = base
        if version.path is not None:
            directory = (await asyncio.to_thread(check_weights, Path(version.path), base)).directory
        await self._replace(version, directory, wire.weights_name(version, digest))

    async def _replace(self, version: PolicyVersion, directory: Path, name: str) -> None:
        """Pause, replace, go on; going on is tried whatever happened in between, and at the next look again."""
        self.known[name] = version.version  # before: an answer in flight may be the first to tell of it
        self._settled.clear()
        self._maybe_paused = True
        try:
            try:
                await self._ask("POST", "/pause_generation", {"mode": "in_place"}, self._quick_s)
                await self._read(directory, name)
            finally:
                await asyncio.shield(self._go_on())
        finally:
            self._settled.set()
        logger.info("replaced the weights by those of %s", version.name)

    async def _read(self, directory: Path, name: str) -> None:
        """Have the server read weights. If that fails, who knows what it holds: it serves none until others are read,
        and what it still draws is nobody's. SGLang's own way back reads the new files under the old name.
        """
        body = {
            "model_path": _place(directory),
            "weight_version": name,
            "flush_cache": False,  # requests in flight need it; nobody else finds it under the new name
            "abort_all_requests": False,
        }
        try:
            await self._ask("POST", "/update_weights_from_disk", body, self._timeout_s)
        except EngineError:
            if self._seen is not None:
                self.doubted.add(self._seen.weights)
            raise
        self._changed(weights=name)

    async def _resume(self) -> None:
        """Let a server go on that may be paused, unless weights are being replaced just now."""
        if self._maybe_paused:
            async with self._resuming:  # never two at once: the later could come after the next pause
                if self._maybe_paused and not self.replacing:
                    await self._go_on()

    async def _go_on(self) -> None:
        await self._ask("POST", "/continue_generation", {}, self._quick_s)
        self._maybe_paused = False

    # --- going ---------------------------------------------------------------------------------------------

    async def unload(self, version: int) -> None:
        """Refuse `version` from now on, and unload it when nobody of this process uses it; returns at once if so."""
        if version in self._leaving or version not in self._names:
            return
        self._leaving.add(version)
        if version not in self._users:
            await self._let_go(version)

    async def _let_go(self, version: int) -> None:
        """Unload an adapter of which nobody here makes use any more."""
        async with self._loading:
            name = self._names.get(version)
            if name is None or version not in self._leaving or version in self._users:
                return
            try:
                await self._ask("POST", "/unload_lora_adapter", {"lora_name": name}, self._timeout_s)
            except (InvalidEngineRequest, UnknownVersion):
                logger.info("policy version %d was unloaded by somebody else", version)
            except EngineError as error:
                logger.warning("policy version %d could not be unloaded (%s); trying later", version, error.code)
                self._leaving.discard(version)
                return
            if self._seen is not None:
                self._changed(adapters=self._seen.adapters - {name})
            self._leaving.discard(version)
            self._used.pop(version, None)

    async def close(self) -> None:
        """Wait for what was begun behind the scenes."""
        await asyncio.gather(*self._background, return_exceptions=True)


def _place(directory: Path) -> str:
    """Where a directory is, for a server that works somewhere else."""
    return str(directory.absolute())
