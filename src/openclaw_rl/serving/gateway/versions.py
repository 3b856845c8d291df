"""Which policy version answers new requests, kept up to date in the background.

New requests get the newest serving version that the engine has loaded. While a newer one is being loaded the one
before it goes on answering; after an engine restart nothing is answered until its version is loaded again. A load may
take minutes: it runs beside the looks at the engine, so that who is doubted meanwhile is looked at all the same.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable

from openclaw_rl.serving.engines.protocol import Engine, EngineError, EngineHealth
from openclaw_rl.serving.gateway.errors import unavailable, unknown_model
from openclaw_rl.store import Store
from openclaw_rl.store.outage import STORE_ERRORS
from openclaw_rl.types import BASE_VERSION, PolicyVersion

logger = logging.getLogger(__name__)

POLL_S = 0.1
HEALTH_S = 1.0
FAILURES_UNTIL_NOT_READY = 2
_VERSION_NAME = re.compile(r"policy-v([1-9][0-9]{0,8})")


def version_name(version: int) -> str:
    """The name under which clients and engines know a version."""
    return "base" if version == BASE_VERSION else f"policy-v{version}"


def number_of(name: str) -> int:
    """The version that is called so; the name is one that `VersionKeeper.check_name` lets pass."""
    return BASE_VERSION if name == "base" else int(name.removeprefix("policy-v"))


class VersionKeeper:
    """Watches the record for what should serve and the engine for what can; touched by the event loop only."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        *,
        served_name: str,
        owned: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`owned`: everybody has a policy of their own (`owners`), and what serves all is the base."""
        self._store = store
        self._owned = owned
        self._engine = engine
        self._served_name = served_name
        self._clock = clock
        self._serving: PolicyVersion | None = None
        self._health: EngineHealth | None = None
        self._health_due = 0.0
        self._health_failures = 0
        self._instance: str | None = None
        self._loaded: frozenset[int] = frozenset()
        self._noted: set[int] = set()  # loaded since the look that is under way began: its answer may lack them
        self._owners = {BASE_VERSION: ""}  # whose the versions are that were seen in the engine; that never changes
        self._loading: asyncio.Task[None] | None = None
        self._current: int | None = None
        self._last: int | None = None  # what answered last of this instance, and may again while another is loaded
        self._failed: tuple[int | None, float] = (None, 0.0)  # which could not be loaded, and when to try again
        self._problem = "the engine has not answered yet"
        self._routable = asyncio.Event()
        self._wake = asyncio.Event()
        self._news = asyncio.Event()  # more may be loaded than before

    # --- what the handlers ask -----------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the policy can answer now."""
        return self._current is not None

    @property
    def current(self) -> int | None:
        """The version that new requests get; None while there is none."""
        return self._current

    @property
    def problem(self) -> str:
        """Why the policy cannot answer; empty where it can."""
        return "" if self.ready else self._problem

    @property
    def health(self) -> EngineHealth | None:
        """What the engine last said."""
        return self._health

    @property
    def serving(self) -> PolicyVersion | None:
        """What the record said last that should serve all; None before it was asked."""
        return self._serving

    @property
    def loaded(self) -> frozenset[int]:
        """The versions that the engine has, as far as is known; with one policy for all, none that is somebody's."""
        return self._loaded

    def note_loaded(self, version: int) -> None:
        """The engine has loaded it."""
        self._loaded |= {version}
        self._noted.add(version)
        self._news.set()

    async def until_loaded(self, version: int) -> None:
        """Return once the engine has it, as far as is known."""
        while version not in self._loaded:
            self._news.clear()
            await self._news.wait()

    def forget(self, version: int) -> None:
        """The engine says that it has it no longer."""
        self._loaded -= {version}
        self._noted.discard(version)

    def model_names(self, *, everybody: bool = False) -> list[str]:
        """The names that clients may ask for now; versions that belong to somebody only if they are `everybody`'s."""
        base = [] if self._base_is_gone else ["base"]
        if self._owned and not everybody:
            return [self._served_name, *base]
        loaded = [version_name(version) for version in sorted(self._loaded - {BASE_VERSION})]
        return [self._served_name, *base, *loaded]

    @property
    def _base_is_gone(self) -> bool:
        """An engine that swaps whole models in place has no base while it has another."""
        return self._health is not None and self._health.ready and BASE_VERSION not in self._loaded

    def check_name(self, model: str) -> None:
        """Refuse a name that can never be served.

        Raises:
            GatewayError: 404.
        """
        if model not in {self._served_name, "base"} and _VERSION_NAME.fullmatch(model) is None:
            raise unknown_model(model[:100], ", ".join(self.model_names()))

    async def route(self, model: str, *, deadline: float) -> int:
        """The version that answers a request for `model`, waiting for the engine until `deadline` (by the clock).

        Raises:
            GatewayError: 503 where the engine is not ready by then, 404 where it has not loaded that version.
        """
        if self._current is None:
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock())):
                    await self._routable.wait()
            except TimeoutError:
                raise unavailable(f"The policy cannot answer now: {self._problem}.") from None
        current = self._current
        if current is None:  # it was lost again between the event and here
            raise unavailable(f"The policy cannot answer now: {self._problem}.")
        if model == self._served_name:
            return current
        self.check_name(model)
        version = number_of(model)
        if version not in self._loaded:
            raise unknown_model(model, ", ".join(self.model_names()))
        return version

    def is_served_name(self, model: str) -> bool:
        """Whether `model` asks for whichever version is in service."""
        return model == self._served_name

    def is_policy(self, model: str, version: int) -> bool:
        """Whether an answer of `version` to a request for `model` is one of the serving policy."""
        return model == self._served_name or (model != "base" and version == self._current)

    def suspect(self, problem: str) -> None:
        """An engine call failed as it does when the engine is gone: route nothing until it was looked at."""
        self._lose(problem)
        self._health_due = 0.0
        self._wake.set()

    # --- the background ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep up to date until cancelled."""
        try:
            while True:
                await self._look()
                try:
                    async with asyncio.timeout(POLL_S):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
        finally:
            if self._loading is not None:
                self._loading.cancel()

    async def refresh(self) -> None:
        """Look once, and wait until what should serve is loaded."""
        await self._look()
        if self._loading is not None:
            await self._loading
            self._route()

    async def _look(self) -> None:
        """At the record, and at the engine when that is due; begin to load what should serve, and route."""
        if self._loading is not None and self._loading.done():
            self._loading.result()  # what it did not expect ends this loop, too
            self._loading = None
        await self._read_serving()
        if self._serving is None:
            return
        if self._clock() >= self._health_due or (self.ready and self._is_to_load(self._serving)):
            await self._read_health()
            # Another may have been published meanwhile: where whole models take each other's place, loading the one
            # from before the look would put the old model back.
            await self._read_serving()
        if self._health is None or not self._health.ready or self._health_failures:
            return
        if self._is_to_load(self._serving):
            self._loading = asyncio.create_task(self._load(self._serving))
        self._route()

    def _is_to_load(self, serving: PolicyVersion) -> bool:
        """Whether the engine lacks it, and has not just failed to load it: a try may read all of its files."""
        if self._loading is not None:
            return False
        version, until = self._failed
        return serving.version not in self._loaded and (serving.version != version or self._clock() >= until)

    async def _read_serving(self) -> None:
        try:
            versions = self._store.versions
            found = await asyncio.to_thread(versions.get, BASE_VERSION) if self._owned else None
            self._serving = found or await asyncio.to_thread(versions.serving)
        except STORE_ERRORS as error:
            logger.warning("the record cannot say which version serves (%s)", type(error).__name__)
            if self._serving is None:
                self._problem = "the record cannot be read"

    async def _read_health(self) -> None:
        self._health_due = self._clock() + HEALTH_S
        self._noted.clear()
        try:
            health = await self._engine.health()
        except EngineError as error:
            self._health_failures += 1
            self._problem = f"the engine does not answer ({error.code})"
            if self._health_failures >= FAILURES_UNTIL_NOT_READY:
                self._health = None
                self._lose(self._problem)
            return
        loaded = await self._for_us(frozenset(health.loaded_versions))
        self._health_failures = 0
        self._health = health
        if health.instance_id != self._instance:
            if self._instance is not None:
                logger.warning("the engine was restarted; loading its version again")
            self._instance = health.instance_id
            self._failed = (None, 0.0)
            self._last = None
            self._noted.clear()  # whichever of the two had loaded it: loading it again does no harm
            self._lose("the engine was restarted")
        # The base only where it is there: see `_base_is_gone`.
        self._loaded = loaded | self._noted
        self._news.set()
        if not health.ready:
            self._lose("the engine is loading the model")
        elif self._current is not None and self._current not in self._loaded:
            self._lose("the engine has let go of the version in service")

    async def _for_us(self, loaded: frozenset[int]) -> frozenset[int]:
        """Of the versions that the engine has, those that may be asked for here.

        With one policy for all that is none of an owner's: an engine that outlives us may hold some of before, when
        `policies.per` was set. Of one whose owner the record cannot say now that is not known, so it is left out.
        """
        if self._owned:
            return loaded
        if self._serving is not None:
            self._owners[self._serving.version] = self._serving.owner
        left_out: set[int] = set()
        for number in loaded - self._owners.keys():
            try:
                version = await asyncio.to_thread(self._store.versions.get, number)
            except STORE_ERRORS as error:
                logger.warning("the record cannot say whose %s is (%s)", version_name(number), type(error).__name__)
                left_out.add(number)
            else:
                if version is not None:
                    self._owners[number] = version.owner
        return frozenset(number for number in loaded - left_out if not self._owners.get(number))

    async def _load(self, serving: PolicyVersion) -> None:
        if not self.ready:
            self._problem = f"the engine is loading {serving.name}"
        try:
            await self._engine.load_version(serving)
        except EngineError as error:
            self._problem = f"the engine cannot load {serving.name} ({error.code})"
            self._failed = (serving.version, self._clock() + HEALTH_S)
            logger.warning("%s; %s answers", self._problem, "nothing" if self._current is None else "the one before")
        else:
            self.note_loaded(serving.version)
        self._wake.set()

    def _route(self) -> None:
        """New requests get what should serve; while that is not loaded, what answered before it."""
        wanted = None if self._serving is None else self._serving.version
        version = next((one for one in (wanted, self._last) if one is not None and one in self._loaded), None)
        if version is None:
            return
        if version != self._current:
            logger.info("version %d answers new requests", version)
        self._current = self._last = version
        self._problem = ""
        self._routable.set()

    def _lose(self, problem: str) -> None:
        self._current = None
        self._problem = problem
        self._routable.clear()
