"""Putting a committed version into service: the engine loads it, then the store says that it serves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from openclaw_rl.serving.engines.protocol import (
    Engine,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
)
from openclaw_rl.store import Store
from openclaw_rl.store.versions import Pinned
from openclaw_rl.types import InvalidTransition, PolicyVersion, VersionState

log = logging.getLogger(__name__)

PUBLISH = "publish"
"""The name of its spans."""
RETRY_INTERVAL_S = 0.2
HEARTBEAT_S = 0.5
PAUSE_S = 0.2
"""With `serving.on_update = "refuse"`: several times as long as the gateway takes to notice a publication."""


class PublishError(Exception):
    """The version is not in service; its message is a sentence for `status`. Trying again is safe."""


class VersionRefused(PublishError):
    """The engine will not have this version: its files are broken, or do not fit. Trying again would not help."""


class VersionOvertaken(PublishError):
    """The version was given up while the engine loaded it: somebody rolled back. There is nothing left to publish."""


class Publisher(Protocol):
    """Puts one version into service."""

    def publish(self, version: PolicyVersion, heartbeat: Callable[[], None]) -> None:
        """Load and serve `version`, calling `heartbeat` about twice a second.

        Raises:
            PublishError: if it could not be done in time.
            VersionRefused: if it can never be done.
            VersionOvertaken: if it is not to be done any more.
        """
        ...


FilesCheck = Callable[[PolicyVersion], object]
"""Reads a version's files as an engine does that is about to load them; raises what its `load_version` would."""


class EnginePublisher:
    """Publishes through the engine protocol: load under the version's own name, then serve it."""

    def __init__(
        self,
        store: Store,
        connect: Callable[[], Engine],
        *,
        timeout_s: float,
        pause_s: float = 0.0,
        check: FilesCheck | None = None,
    ) -> None:
        """`connect` makes a fresh engine adapter; each publication uses one and closes it.

        `pause_s`: how long a publication waits for the gateway to turn everybody away (`serving.on_update`). `check`:
        given where the gateway loads a version for whoever asks for it (`policies.per`). There a version whose files
        are sound serves without being loaded while the engine has no place for it: its owner may not be there, and
        to wait for a place would keep everybody else's steps waiting.
        """
        self._store = store
        self._check = check
        self._connect = connect
        self._timeout_s = timeout_s
        self._pause_s = pause_s

    def publish(self, version: PolicyVersion, heartbeat: Callable[[], None]) -> None:
        """Load `version` in the engine, retrying until the timeout, and make it the one that serves."""
        with self._store.status.span(PUBLISH, version=version.version):
            time.sleep(self._pause_s)
            asyncio.run(self._load(version, heartbeat))
            try:
                self._store.versions.serve(version.version)
            except Pinned as error:
                raise PublishError(f"{error} is pinned: {version.name} waits") from error
            except InvalidTransition as error:
                raise VersionOvertaken(f"{version.name} was given up while the engine loaded it") from error

    async def _load(self, version: PolicyVersion, heartbeat: Callable[[], None]) -> None:
        engine = self._connect()
        loading = asyncio.create_task(self._load_until_it_works(engine, version))
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        try:
            while not loading.done():
                heartbeat()
                await asyncio.wait({loading}, timeout=HEARTBEAT_S)
                if asyncio.get_running_loop().time() > deadline and not loading.done():
                    raise PublishError(f"the engine did not load {version.name} within {self._timeout_s:.0f} s")
            loading.result()
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            await engine.close()

    async def _load_until_it_works(self, engine: Engine, version: PolicyVersion) -> None:
        while True:
            try:
                await self._load_or_check(engine, version)
            except (EngineUnavailable, EngineOverloaded):
                await asyncio.sleep(RETRY_INTERVAL_S)
            except InvalidEngineRequest as error:
                raise VersionRefused(f"the engine refuses {version.name}: {error}") from error
            except EngineError as error:
                raise PublishError(f"the engine failed to load {version.name}: {error}") from error
            else:
                return

    async def _load_or_check(self, engine: Engine, version: PolicyVersion) -> None:
        try:
            await engine.load_version(version)
        except EngineOverloaded as error:
            if self._check is None:
                raise
            await asyncio.to_thread(self._check, version)
            log.info("%s serves, and is loaded when it is asked for: now %s", version.name, error)


def candidates(store: Store, owner: str | None = None) -> list[PolicyVersion]:
    """Versions, of all or of one owner, that are committed and not yet in service, the oldest first."""
    versions = store.versions.all() if owner is None else store.versions.of(owner)
    return [version for version in versions if version.state is VersionState.CANDIDATE]
