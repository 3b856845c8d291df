"""A loop without work: it is tied to its parent and ends when told. Run by path.

It imports as little as it can: five of them start for every test.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from openclaw_rl.supervision.process import LoopReporter, die_with_parent, stop_event
from openclaw_rl.types import LoopName


class ReadyHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"loops": {loop.value: {"heartbeat_age_s": 0.0} for loop in LoopName}}).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve_ready(host: str, port: int) -> None:
    server = HTTPServer((host, port), ReadyHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def wait_and_say_so(run_dir: Path, stop: threading.Event) -> None:
    from openclaw_rl.store import Store

    store = Store.open(run_dir / "store.sqlite")
    reporter = LoopReporter(store, LoopName.TRAINING)
    while not stop.wait(0.1):
        reporter.waiting("nothing in particular")
    store.close()


def main() -> int:
    name, config_path, parent = sys.argv[1:]
    die_with_parent(int(parent))
    stop = stop_event()
    loop, config = LoopName(name), json.loads(Path(config_path).read_text())
    model = config["model"]["path"]
    if loop is LoopName.ENGINE and model == "impossible":
        from openclaw_rl.supervision.child import EXIT_CONFIGURATION

        print("there is no such model", file=sys.stderr)
        return EXIT_CONFIGURATION
    if loop is LoopName.GATEWAY:
        serve_ready(config["serving"]["host"], config["serving"]["port"])
    if loop is LoopName.TRAINING:
        wait_and_say_so(Path(config["run_dir"]), stop)
    stop.wait()
    if loop is LoopName.TRAINING and model == "stubborn":
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
