"""Which replicas get no new requests, as a file in the run directory: it outlives the gateway that reads it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from openclaw_rl.config_render import write_private

logger = logging.getLogger(__name__)

FILE = "draining.json"


class DrainList:
    """Written by `openclaw-rl engine drain`, read by whoever routes."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / FILE
        self._seen: tuple[int, int] | None = None
        self._urls: frozenset[str] = frozenset()

    def read(self) -> frozenset[str]:
        """The URLs that are being drained. A file that cannot be read changes nothing, and the log says so."""
        try:
            about = self._path.stat()
            seen = (about.st_mtime_ns, about.st_ino)
            if seen != self._seen:
                self._urls = frozenset(str(url) for url in json.loads(self._path.read_text(encoding="utf-8")))
                self._seen = seen
        except FileNotFoundError:
            self._urls, self._seen = frozenset(), None
        except (OSError, ValueError, TypeError) as error:
            logger.warning("%s cannot be read (%s); what was drained still is", self._path, type(error).__name__)
        return self._urls

    def write(self, urls: frozenset[str]) -> None:
        """Replace the list.

        Raises:
            OSError: it cannot be written.
        """
        write_private(self._path, json.dumps(sorted(urls)) + "\n")
