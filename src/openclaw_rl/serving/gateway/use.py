"""Tells the trainer that the policy is used, by the time of a file: `training.window.idle_s` counts from it.

The record knows the arrival of what is recorded. It knows nothing of requests that are not to be (`X-No-Train`, keys
with `train = false`), of those served while it could not be written, or of an answer that is still being given.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from openclaw_rl.serving.gateway.chat import Load

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""The file is written at most once in this time."""


class UseMark:
    """Touches a file when a request begins or ends, and while any is being served.

    Written by a background task, in a thread: no request waits for it, and none fails where it cannot be written.
    """

    def __init__(self, path: Path, load: Load) -> None:
        self._path = path
        self._load = load
        self.failures = 0
        """Times that it could not be written since the start."""
        self._failing = False

    async def run(self) -> None:
        """Keep the mark until cancelled."""
        while True:
            if not self._load.active:
                await self._load.changed.wait()
            self._load.changed.clear()
            await asyncio.to_thread(self._touch)
            await asyncio.sleep(INTERVAL_S)

    def _touch(self) -> None:
        try:
            self._path.touch()
        except OSError as error:
            self.failures += 1
            if not self._failing:
                logger.warning("the trainer is not told that the policy is used (%s)", type(error).__name__)
            self._failing = True
        else:
            self._failing = False
