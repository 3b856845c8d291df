"""What `up` waits for before it says that it is ready."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from openclaw_rl.config import Config
from openclaw_rl.supervision.readiness import AFTER_ENGINE_S, ReadinessProbe, ready_within_s, silent_loops
from openclaw_rl.types import LoopName
from tests.supervision.waiting import eventually

ALL = {loop.value: {"heartbeat_age_s": 0.0} for loop in LoopName}


class FakeGateway(HTTPServer):
    """Answers `/readyz` with what the test says."""

    answer: tuple[int, bytes] = (503, b'{"ready": false}')

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)

    def says(self, loops: Any) -> None:
        self.answer = (200, json.dumps({"ready": True, "loops": loops}).encode())


class Handler(BaseHTTPRequestHandler):
    server: FakeGateway

    def do_GET(self) -> None:
        status, body = self.server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    server = FakeGateway()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join(5)
    server.server_close()


def test_it_is_ready_once_every_loop_has_reported_and_says_until_then_which_has_not(gateway: FakeGateway) -> None:
    probe = ReadinessProbe(f"http://127.0.0.1:{gateway.server_port}")
    probe.start()
    try:
        eventually(lambda: "/readyz answered 503" in probe.last, "it is told that the gateway is not ready")
        gateway.says({name: said for name, said in ALL.items() if name not in {"training", "judging"}})
        eventually(lambda: probe.last == "no word yet from judging, training", "it misses two loops")
        gateway.answer = (200, b"<html>")
        eventually(lambda: "not JSON" in probe.last, "it asks on after nonsense")
        assert not probe.ready
        gateway.says(ALL)
        eventually(lambda: probe.ready, "all five have reported")
    finally:
        probe.stop()


def test_the_word_of_an_earlier_deployment_does_not_count() -> None:
    stale = {**ALL, "rollout": {"heartbeat_age_s": 12.5}}
    assert silent_loops({"loops": stale}, 12.0) == ["rollout"]
    assert silent_loops({"loops": stale}, 13.0) == []


@pytest.mark.parametrize("body", [{}, {"loops": None}, {"loops": {}}])
def test_a_body_without_loops_misses_all(body: dict[str, Any]) -> None:
    assert set(silent_loops(body, 60.0)) == set(LoopName) - {LoopName.DRIVER}


@pytest.mark.parametrize(
    ("engine", "within_s"),
    [
        ({}, 180.0),
        ({"kind": "sglang", "sglang": {"start_timeout_s": 500}}, 500 + AFTER_ENGINE_S),
        ({"kind": "vllm", "vllm": {"start_timeout_s": 20}}, 180.0),
        ({"kind": "vllm", "urls": ["http://127.0.0.1:1"]}, 180.0),  # it runs already
    ],
)
def test_a_server_that_is_started_has_its_own_time_to_start(engine: dict[str, Any], within_s: float) -> None:
    assert ready_within_s(Config.model_validate({"engine": engine})) == within_s
