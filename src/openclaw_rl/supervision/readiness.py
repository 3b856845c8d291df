"""Asks the gateway whether the deployment is ready, apart from the thread that minds the processes.

Ready means that clients are answered and that each loop has reported since the start: a gateway alone would say
"ready" beside a trainer that does not exist.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.types import LoopName

POLL_INTERVAL_S = 0.2
REQUEST_TIMEOUT_S = 2.0
AFTER_ENGINE_S = 60.0
"""What the other loops may take once an engine of another program is there."""


def ready_within_s(config: Config) -> float:
    """How long a deployment may take until it is ready: `supervisor.ready_timeout_s`, or as long as its engine may.

    A server of another program that is started here has a deadline of its own, to load its model.
    """
    engine, limit = config.engine, config.supervisor.ready_timeout_s
    starts = {"vllm": engine.vllm.start_timeout_s, "sglang": engine.sglang.start_timeout_s}
    if engine.urls or engine.kind not in starts:
        return limit
    return max(limit, starts[engine.kind] + AFTER_ENGINE_S)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordHealth:
    """What a gateway says of the record: why and since when it cannot be written (both None where it can).

    `unsaved` are counters that could not be written yet, and are known to the gateway alone.
    """

    problem: str | None
    since: float | None
    unsaved: Mapping[str, int]


def ask_gateway(url: str) -> RecordHealth | None:
    """What the gateway at `url` (as clients use it, with `/v1`) says of the record; None where it does not answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.removesuffix('/v1')}/readyz", timeout=REQUEST_TIMEOUT_S) as response:
            return _record_of(json.load(response))
    except urllib.error.HTTPError as error:  # not ready, but it says the same
        with error:
            return _record_of_text(error.read())
    except (OSError, http.client.HTTPException, ValueError):
        return None


def _record_of_text(body: bytes) -> RecordHealth | None:
    try:
        return _record_of(json.loads(body))
    except ValueError:
        return None


def _record_of(body: Any) -> RecordHealth | None:
    said = body.get("record") if isinstance(body, dict) else None
    if not isinstance(said, dict):
        return None
    return RecordHealth(problem=said.get("problem"), since=said.get("since"), unsaved=said.get("unsaved") or {})


class ReadinessProbe:
    """Polls `/readyz` until it answers 200 and shows a heartbeat of every loop. `last` says what was missing last."""

    def __init__(self, gateway_url: str, *, since: float | None = None) -> None:
        """`since` (seconds since the epoch): heartbeats from before are an earlier deployment's; by default now."""
        self._url = f"{gateway_url}/readyz"
        self._since = time.time() if since is None else since
        # No proxy of the environment: the gateway is on this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._ready = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="readiness", daemon=True)
        self.last = "no answer yet"

    @property
    def ready(self) -> bool:
        """Whether it was ready once."""
        return self._ready.is_set()

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()
        self._thread.join(timeout=REQUEST_TIMEOUT_S * 2)

    def _poll(self) -> None:
        while not self._stopped.wait(POLL_INTERVAL_S):
            if self._ask():
                self._ready.set()
                return

    def _ask(self) -> bool:
        try:
            with self._opener.open(self._url, timeout=REQUEST_TIMEOUT_S) as response:
                silent = silent_loops(json.load(response), time.time() - self._since)
        except urllib.error.HTTPError as error:
            with error:
                self.last = f"/readyz answered {error.code}: {error.read(400).decode('utf-8', errors='replace')}"
        except (OSError, http.client.HTTPException) as error:
            self.last = f"the gateway cannot be reached ({error})"
        except ValueError:
            self.last = "/readyz answered something that is not JSON"
        else:
            self.last = f"no word yet from {', '.join(silent)}" if silent else ""
            return not silent
        return False


def silent_loops(body: Mapping[str, Any], within_s: float) -> list[str]:
    """The loops that, by the body of `/readyz`, have not reported within the last `within_s` seconds.

    Not the driver: it is a client itself, and others can be served without it.
    """
    said = body.get("loops") or {}
    needed = [loop for loop in LoopName if loop is not LoopName.DRIVER]
    ages = {loop: said.get(loop.value, {}).get("heartbeat_age_s") for loop in needed}
    return [loop.value for loop, age in ages.items() if age is None or age > within_s]
