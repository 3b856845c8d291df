"""What failed for one policy is left alone for a while, so that the policies of other owners have their turns."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Set
from dataclasses import dataclass

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import UnreadablePolicy
from openclaw_rl.training.recovery import NoIntactCheckpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Failed:
    words: str
    number: int
    until: float


class PutOff:
    """By owner, "" being the shared policy: what is to be tried again, and when; each time a longer while."""

    def __init__(
        self, *, pause_s: float = 0.25, max_pause_s: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """The pauses double from `pause_s` to `max_pause_s`."""
        self._pause_s = pause_s
        self._max_pause_s = max_pause_s
        self._clock = clock
        self._failed: dict[str, _Failed] = {}

    def put(self, owner: str, words: str) -> bool:
        """One more failure; `words`: what has to be tried again. Whether it is the first since it was `done`."""
        before = self._failed.get(owner)
        number = 0 if before is None else before.number + 1
        pause = min(self._max_pause_s, self._pause_s * 2 ** min(number, 16))
        self._failed[owner] = _Failed(words=words, number=number, until=self._clock() + pause)
        return before is None

    def leave_alone(self, owner: str, words: str, error: Exception) -> None:
        """`put`, and the log says once what is wrong, until it came through."""
        if self.put(owner, words):
            log.error("one owner's policy is not trained meanwhile: %s", error)

    def done(self, owner: str) -> None:
        """It came through, or is not to be done any more."""
        self._failed.pop(owner, None)

    @property
    def due(self) -> bool:
        """Whether something is to be tried again now."""
        now = self._clock()
        return any(failed.until <= now for failed in self._failed.values())

    def owners(self) -> Set[str]:
        """For whom something is put off now, and not to be tried yet."""
        now = self._clock()
        return {owner for owner, failed in self._failed.items() if failed.until > now}

    def words(self, owner: str) -> str | None:
        """What is to be tried again for this owner, now or later; None where nothing is."""
        failed = self._failed.get(owner)
        return None if failed is None else failed.words


def cure_of(error: UnreadablePolicy | ConfigError, owner: str) -> str:
    """What has to come before an owner's policy can be trained on from its checkpoint, as `status` says it."""
    if isinstance(error, UnreadablePolicy):
        return f"{error.filename} to be readable ({error.strerror})"
    if isinstance(error, NoIntactCheckpoint):
        return f"a person: {error}"
    return (
        f"a person: {error}: set it back, or have this owner begin anew with "
        f"openclaw-rl policy rollback base --user {shlex.quote(owner)}"
    )
