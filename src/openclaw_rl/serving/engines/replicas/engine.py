"""Several engines behind the one protocol.

A session stays on one replica, chosen by rendezvous hashing. A replica that fails is taken out: a request that has
drawn no token goes to the next, one that has fails clearly. A replica that comes back, or is drained no longer, gets
the version in service before it gets requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from openclaw_rl.policy_files import CorruptPolicy, UnreadablePolicy, WeightsKind, weights_of
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    Engine,
    EngineCapabilities,
    EngineError,
    EngineHealth,
    EngineUnavailable,
    InvalidEngineRequest,
    PromptRead,
    ScoreRequest,
    ScoreResult,
    TokensDrawn,
    UnknownVersion,
)
from openclaw_rl.serving.engines.replicas.drains import DrainList
from openclaw_rl.serving.engines.replicas.replica import LOOK_S, Replica
from openclaw_rl.serving.engines.replicas.routing import preference
from openclaw_rl.types import BASE_VERSION, Message, PolicyVersion, VersionState

logger = logging.getLogger(__name__)

LOOK_ON_S = 1.0
"""How often replicas are looked at while they load."""
_BASE = PolicyVersion(version=BASE_VERSION, state=VersionState.SERVING, path=None, step=0, created_at=0.0)


class ReplicaLost(EngineError):
    """The replica was lost in the middle of an answer; the others go on."""

    code = "replica_lost"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaReport:
    """One replica for `status`: its address, its state in words, requests under way, versions loaded."""

    url: str
    state: str
    requests: int
    versions: tuple[int, ...]


class ReplicatedEngine:
    """Implements `Engine` over several; for one event loop."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        *,
        rolling: bool = False,
        drains: DrainList | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        """`engines` by URL. `rolling`: a version is in service once one replica has it, and the others follow.

        `look_s`: how long one may take to say how it is, before it counts as not answering.
        """
        self._replicas = {url: Replica(url, engine, look_s=look_s) for url, engine in engines.items()}
        self._rolling = rolling
        self._drains = drains
        self._known = {BASE_VERSION: _BASE}
        self._wanted = BASE_VERSION
        self._before: int | None = None  # nothing was asked for yet
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}

    @property
    def capabilities(self) -> EngineCapabilities:
        """What all of them can."""
        each = [replica.engine.capabilities for replica in self._replicas.values()]
        names = [field.name for field in fields(EngineCapabilities)]
        return EngineCapabilities(**{name: all(getattr(one, name) for one in each) for name in names})

    @property
    def inner(self) -> tuple[Engine, ...]:
        """The engines themselves."""
        return tuple(one.engine for one in self._replicas.values())

    def report(self) -> tuple[ReplicaReport, ...]:
        """How each replica is."""
        return tuple(
            ReplicaReport(url=one.url, state=one.state, requests=one.active, versions=tuple(sorted(one.loaded)))
            for one in self._replicas.values()
        )

    # --- answering -----------------------------------------------------------------------------------------

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Generate on the session's replica; closing the iterator cancels.

        Raises:
            ReplicaLost: it was lost after it had drawn tokens.
            EngineUnavailable: no replica can answer now.
            UnknownVersion: none has that version.
            EngineError: as the replica says.
        """
        if not request.pinned:
            self._now_wanted(request.version)
        tried: dict[str, EngineError] = {}
        begun = drew = False
        while True:
            replica, version = self._choose(request, tried)
            asked = replace(request, version=version)
            try:
                async with contextlib.aclosing(replica.answer(asked)) as events:
                    async for event in events:
                        drew = drew or (isinstance(event, TokensDrawn) and bool(event.ids or event.text))
                        if not isinstance(event, PromptRead):
                            yield event
                        elif not begun:
                            begun = True
                            yield event if version == request.version else replace(event, version=version)
                            request = replace(request, version=version, pinned=True)  # that was said, so it holds
                return
            except (EngineUnavailable, UnknownVersion) as error:
                tried[replica.url] = error
                self._failed(replica, version, error)
                if drew:
                    raise ReplicaLost("the engine's replica was lost in the middle of the answer") from error

    def _failed(self, replica: Replica, version: int, error: EngineError) -> None:
        if isinstance(error, UnknownVersion):
            replica.forget(version)
            if version == self._wanted:
                replica.returned = True
                self._follow(replica)
        else:
            replica.lose(str(error))

    def _choose(self, request: ChatRequest, tried: Mapping[str, EngineError]) -> tuple[Replica, int]:
        """The session's first choice among those that can answer, and the version that it will answer with.

        `tried`: those that could not, and why.
        """
        there = [one for one in self._replicas.values() if one.takes_requests]
        versions = {one.url: self._version_of(one, request) for one in there if one.url not in tried}
        for url in preference(request.session_id or request.request_id, versions):
            version = versions[url]
            if version is not None:
                return self._replicas[url], version
        if there and all(isinstance(error, UnknownVersion) for error in tried.values()):
            raise UnknownVersion(f"no replica has policy version {request.version}", param="model")
        raise EngineUnavailable(f"no replica can answer ({self._problems()})")

    def _version_of(self, replica: Replica, request: ChatRequest) -> int | None:
        """The version that `replica` would answer with; None where it must not."""
        if request.version in replica.loaded:
            return request.version
        old = self._before in replica.loaded and not replica.returned
        return self._before if self._rolling and old and not request.pinned else None

    def _problems(self) -> str:
        return "; ".join(f"{one.url}: {one.state}" for one in self._replicas.values())

    # --- versions ------------------------------------------------------------------------------------------

    async def load_version(self, version: PolicyVersion) -> None:
        """Load a version: on every replica that takes requests, or (rolling) on one, and the others follow.

        Raises:
            EngineUnavailable: there is none.
            InvalidEngineRequest: it is a whole model, and these take none.
            EngineError: one that is there cannot load it.
        """
        if not self.capabilities.full_weights and await asyncio.to_thread(_is_whole, version):
            raise InvalidEngineRequest(f"several of this engine take no whole model ({version.name})", param="path")
        if not any(one.takes_requests for one in self._replicas.values()):
            await self._look()
        there = [one for one in self._replicas.values() if one.takes_requests]
        able = [one for one in there if not one.doubtful] or there  # who is not heard of gets it when it is
        load = self._load_on_one if self._rolling else self._load_on_all
        loaded = await self._looking_on(load(able, version))
        if not loaded:
            raise EngineUnavailable(f"no replica could load {version.name} ({self._problems()})")
        self._known[version.version] = version  # not before: what one of them refused counts as loaded on none
        self._now_wanted(version.version)

    async def _looking_on(self, work: Coroutine[Any, Any, bool]) -> bool:
        """Look at the replicas while something is waited for, so that one that hangs is found out."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=LOOK_ON_S)
                if not task.done():
                    await self._look()
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _load_on_all(self, able: list[Replica], version: PolicyVersion) -> bool:
        """Load it everywhere at once; a replica that is lost meanwhile gets it when it comes back."""
        done = await asyncio.gather(*(one.load(version) for one in able), return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException) and not isinstance(error, EngineUnavailable):
                raise error
        return None in done

    async def _load_on_one(self, able: list[Replica], version: PolicyVersion) -> bool:
        for one in able:
            try:
                await one.load(version)
            except EngineUnavailable:
                continue
            return True
        return False

    def _now_wanted(self, version: int) -> None:
        """The version in service: what a replica needs before it gets requests.

        Nothing stands in for one that was gone back to, for what was gone back from is not wanted; nor for the first
        one that is asked for, before which none answered.
        """
        if version != self._wanted or self._before is None:
            before = version if self._before is None else self._wanted
            self._before, self._wanted = min(before, version), version

    def _follow(self, replica: Replica) -> None:
        """Have a replica catch up, in the background; in rolling mode one after the other."""
        running = self._tasks.get(replica.url)
        busy = self._rolling and any(not task.done() for task in self._tasks.values())
        if not busy and (running is None or running.done()):
            self._tasks[replica.url] = asyncio.create_task(self._catch_up(replica))

    async def _catch_up(self, replica: Replica) -> None:
        version = self._known.get(self._wanted)
        if version is None:
            return
        try:
            await replica.load(version)
        except EngineError as error:
            logger.warning("the engine at %s cannot load %s (%s)", replica.url, version.name, error.code)
        else:
            replica.returned = False
            logger.info("the engine at %s has %s", replica.url, version.name)

    async def unload_version(self, version: int) -> None:
        """Unload a version everywhere; the base stays."""
        if version == BASE_VERSION:
            return
        self._known.pop(version, None)
        able = [one for one in self._replicas.values() if one.up]
        done = await asyncio.gather(*(one.engine.unload_version(version) for one in able), return_exceptions=True)
        for one, error in zip(able, done, strict=True):
            if error is None:
                one.forget(version)
            elif not isinstance(error, EngineUnavailable):
                raise error

    # --- how they are --------------------------------------------------------------------------------------

    async def health(self) -> EngineHealth:
        """Ready while one of them takes requests. A version counts as loaded where this adapter was told to load it.

        Raises:
            EngineUnavailable: none of them is there.
        """
        await self._look()
        there = [one for one in self._replicas.values() if one.takes_requests]
        if not there:
            raise EngineUnavailable(f"no replica is there ({self._problems()})")
        return EngineHealth(
            ready=True,
            instance_id="replicas",  # a restart of one of them is our affair
            loaded_versions=tuple(sorted(self._in_reach(there))),
            active_requests=sum(one.active for one in self._replicas.values()),
            queued_requests=sum(one.queued for one in there),
            context_length=min(one.context_length for one in there),
        )

    def _in_reach(self, there: list[Replica]) -> set[int]:
        """The versions that we know and that a replica has."""
        return {version for one in there for version in one.loaded & self._known.keys()}

    async def _look(self) -> None:
        """Look at all of them. One that was away, or said nothing when last asked, keeps nobody waiting, unless there
        is no other.
        """
        drained = frozenset() if self._drains is None else self._drains.read()
        awaited = [url for url, one in self._replicas.items() if (one.up and not one.doubtful) or not one.looked_at]
        for url, one in self._replicas.items():
            if url not in self._looks or self._looks[url].done():
                self._looks[url] = asyncio.create_task(self._look_at(one, url in drained))
        looks = [self._looks[url] for url in awaited or self._replicas]
        await asyncio.wait(looks)  # not `gather`: who is cancelled here takes no look from others
        for look in looks:
            look.result()

    async def _look_at(self, replica: Replica, drained: bool) -> None:
        replica.returned |= replica.draining and not drained
        replica.draining = drained
        await replica.look()
        if self._wanted in replica.loaded or self._wanted not in self._known:
            replica.returned = False
        elif replica.takes_requests:
            self._follow(replica)

    # --- the rest of the protocol --------------------------------------------------------------------------

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[Mapping[str, Any], ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """The token ids that any of them would see."""
        tried: set[str] = set()
        while True:
            replica = await self._any(tried)
            try:
                return await replica.engine.render(messages, tools, generation_prompt=generation_prompt)
            except EngineUnavailable as error:
                replica.lose(str(error))

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score given tokens on any that has the version."""
        tried: set[str] = set()
        unknown: UnknownVersion | None = None
        while True:
            try:
                replica = await self._any(tried, request.version)
            except EngineUnavailable:
                if unknown is not None:
                    raise unknown from None
                raise
            try:
                return await replica.score(request)
            except EngineUnavailable:
                logger.info("another replica scores")
            except UnknownVersion as error:
                unknown = error
                replica.forget(request.version)

    async def _any(self, tried: set[str], version: int = BASE_VERSION) -> Replica:
        """The least busy one that has a version and was not tried. In a judge's process nobody else looks at them.

        Raises:
            EngineUnavailable: there is none, looked at just now.
        """
        for looked in (False, True):
            if looked:
                await self._look()
            for one in sorted(self._replicas.values(), key=lambda one: one.active + one.queued):
                if one.takes_requests and version in one.loaded and one.url not in tried:
                    tried.add(one.url)
                    return one
        raise EngineUnavailable(f"no replica can be asked ({self._problems()})")

    async def close(self) -> None:
        """Let go of all of them."""
        tasks = [*self._tasks.values(), *self._looks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(one.engine.close() for one in self._replicas.values()))


def _is_whole(version: PolicyVersion) -> bool:
    """Whether its files are a whole model's; what cannot be read is for a replica to refuse."""
    if version.path is None:
        return False
    try:
        return weights_of(Path(version.path)).kind is WeightsKind.FULL
    except (CorruptPolicy, UnreadablePolicy):
        return False
