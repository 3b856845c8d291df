"""Asks the gateway whether the deployment is ready, apart from the thread that minds the processes."""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request

POLL_INTERVAL_S = 0.2
REQUEST_TIMEOUT_S = 2.0


class ReadinessProbe:
    """Polls `/readyz` until it answers 200. `last` says what it answered last."""

    def __init__(self, gateway_url: str) -> None:
        self._url = f"{gateway_url}/readyz"
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
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:
            with error:
                self.last = f"/readyz answered {error.code}: {error.read(400).decode('utf-8', errors='replace')}"
        except (OSError, http.client.HTTPException) as error:
            self.last = f"the gateway cannot be reached ({error})"
        return False
