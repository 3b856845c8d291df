"""Publishes what is committed: the oldest first, one owner's failure leaving the others alone.

What was made under another `policies.per` waits until that is set back: owners' versions while there is one policy
for all, and the shared policy's while there are owners.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Set
from functools import partial

from openclaw_rl.store import Store
from openclaw_rl.supervision.process import Reports
from openclaw_rl.training.deaths import Stopped
from openclaw_rl.training.publish import Publisher, PublishError, VersionOvertaken, VersionRefused, candidates
from openclaw_rl.training.put_off import PutOff
from openclaw_rl.types import InvalidTransition, PolicyVersion

log = logging.getLogger(__name__)

REFUSED_BY_ENGINE = "engine"
"""Why a version never serves that the engine will not load."""


class Candidates:
    """Versions that wait to be put into service, and what comes of it."""

    def __init__(
        self,
        *,
        store: Store,
        publisher: Publisher,
        reporter: Reports,
        stop: threading.Event,
        put_off: PutOff,
        owned: bool,
    ) -> None:
        """`put_off` is told for whom a publication failed and is tried again. `owned`: `policies.per` is set."""
        self._store = store
        self._owned = owned
        self.publisher = publisher
        self._reporter = reporter
        self._stop = stop
        self._put_off = put_off

    def publish(self, owner: str) -> bool:
        """Put what is committed into service; False where that of this owner has to be tried again later."""
        failed: set[str] = set()
        while (version := self._next(failed)) is not None:
            try:
                self.publisher.publish(version, partial(self._wait_for_engine, version.name))
            except VersionRefused as error:
                self._reject(version, error)
            except VersionOvertaken as error:
                log.warning("%s: training goes on from the version in service", error)
                self._store.status.count("publications_overtaken")
            except PublishError as error:
                log.warning("%s", error)
                self._store.status.count("publish_failures")
                self._put_off.put(version.owner, f"another try to publish {version.name}: {error}")
                failed.add(version.owner)
                continue
            self._put_off.done(version.owner)
        return not candidates(self._store, owner)

    def _wait_for_engine(self, name: str) -> None:
        if self._stop.is_set():  # so is the engine, or it will be
            raise Stopped(f"before {name} was in service; the next start puts it there")
        self._reporter.waiting(f"the engine to load {name}")

    def _next(self, failed: Set[str]) -> PolicyVersion | None:
        """The oldest candidate now: a rollback during the last publication may have given up those that waited."""
        held = failed | self._store.versions.pinned_owners() | self._put_off.owners()
        waiting = (one for one in candidates(self._store) if bool(one.owner) == self._owned)
        return next((one for one in waiting if one.owner not in held), None)

    def _reject(self, version: PolicyVersion, error: VersionRefused) -> None:
        """Give up a version that the engine will never load, and go on from the last one that was not given up.

        Its step stays committed: the samples are spent (trained, once), and its number is not used again. What they
        taught is gone with the weights, because to train on from weights that nobody can sample from would teach the
        policy by the answers of another one.
        """
        log.error("%s; it is rejected, and training goes on from the version before it", error)
        with contextlib.suppress(InvalidTransition):  # somebody rolled back meanwhile: it is rejected already
            self._store.versions.reject(version.version, REFUSED_BY_ENGINE)
        self._store.status.count("versions_refused")
