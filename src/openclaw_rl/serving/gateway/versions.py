"""Which policy version answers new requests, kept up to date in the background.

New requests get the newest serving version that the engine has loaded. While a newer one is being loaded the one
before it goes on answering; after an engine restart nothing is answered until its version is loaded again.
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


class VersionKeeper:
    """Watches the record for what should serve and the engine for what can; touched by the event loop only."""

    def __init__(
        self, store: Store, engine: Engine, *, served_name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._engine = engine
        self._served_name = served_name
        self._clock = clock
        self._serving: PolicyVersion | None = None
        self._health: EngineHealth | None = None
        self._health_due = 0.0
        self._health_failures = 0
        self._instance: str | None = None
        self._loaded: frozenset[int] = frozenset()
        self._current: int | None = None
        self._problem = "the engine has not answered yet"
        self._routable = asyncio.Event()
        self._wake = asyncio.Event()

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

    def model_names(self) -> list[str]:
        """The names that clients may ask for now."""
        loaded = [version_name(version) for version in sorted(self._loaded - {BASE_VERSION})]
        return [self._served_name, "base", *loaded]

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
        if model == "base":
            return BASE_VERSION
        self.check_name(model)
        version = int(model.removeprefix("policy-v"))
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
        while True:
            await self.refresh()
            try:
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def refresh(self) -> None:
        """Look once: at the record, at the engine when that is due, and load what should serve."""
        await self._read_serving()
        serving = self._serving
        if serving is None:
            return
        if self._clock() >= self._health_due or (self.ready and serving.version not in self._loaded):
            await self._read_health()
        if self._health is None or not self._health.ready or self._health_failures:
            return
        if serving.version not in self._loaded and not await self._load(serving):
            return
        self._route_to(serving.version)

    async def _read_serving(self) -> None:
        try:
            self._serving = await asyncio.to_thread(self._store.versions.serving)
        except STORE_ERRORS as error:
            logger.warning("the record cannot say which version serves (%s)", type(error).__name__)
            if self._serving is None:
                self._problem = "the record cannot be read"

    async def _read_health(self) -> None:
        self._health_due = self._clock() + HEALTH_S
        try:
            health = await self._engine.health()
        except EngineError as error:
            self._health_failures += 1
            self._problem = f"the engine does not answer ({error.code})"
            if self._health_failures >= FAILURES_UNTIL_NOT_READY:
                self._health = None
                self._lose(self._problem)
            return
        self._health_failures = 0
        self._health = health
        if health.instance_id != self._instance:
            if self._instance is not None:
                logger.warning("the engine was restarted; loading its version again")
            self._instance = health.instance_id
            self._lose("the engine was restarted")
        self._loaded = frozenset(health.loaded_versions) | {BASE_VERSION}
        if not health.ready:
            self._lose("the engine is loading the model")
        elif self._current is not None and self._current not in self._loaded:
            self._lose("the engine has let go of the version in service")

    async def _load(self, serving: PolicyVersion) -> bool:
        try:
            await self._engine.load_version(serving)
        except EngineError as error:
            self._problem = f"the engine cannot load {serving.name} ({error.code})"
            self._health_due = self._clock() + HEALTH_S
            logger.warning("%s; %s answers", self._problem, "nothing" if self._current is None else "the one before")
            return False
        self._loaded |= {serving.version}
        return True

    def _route_to(self, version: int) -> None:
        if version != self._current:
            logger.info("version %d answers new requests", version)
        self._current = version
        self._problem = ""
        self._routable.set()

    def _lose(self, problem: str) -> None:
        self._current = None
        self._problem = problem
        self._routable.clear()
