"""A gateway that really listens: uvicorn on a free port, a real store, an engine that says what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvloop

from openclaw_rl.config import Config
from openclaw_rl.serving.gateway.guard import PATIENCE_S
from openclaw_rl.serving.gateway.server import serve
from openclaw_rl.store import Store
from openclaw_rl.types import Request, Turn
from tests.gateway.fake_engine import FakeEngine

USER: Any = {"role": "user", "content": "Hello there, how are you?"}


@dataclass
class Gateway:
    """A running gateway, what stands behind it, and clients for it."""

    config: Config
    store: Store
    engine: FakeEngine
    url: str
    http: httpx.Client
    official_http: Any

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client; it never retries."""
        plain = {"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "http_client": self.official_http}
        return openai.OpenAI(**{**plain, **options})

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        """The official client, asynchronous."""
        return openai.AsyncOpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **options})

    def post(self, body: Any, **options: Any) -> httpx.Response:
        """A chat request as plain HTTP."""
        return self.http.post("/v1/chat/completions", json=body, **options)

    def turn(self, response_id: str) -> Turn:
        """The recorded turn of an answer."""
        turn = self.store.turns.get(response_id.removeprefix("chatcmpl-"))
        assert turn is not None
        return turn

    def requests(self) -> list[dict[str, Any]]:
        """Every recorded request, as rows, the first first."""
        from openclaw_rl.store.schema import requests

        with self.store._database.read() as connection:
            rows = connection.execute(requests.select().order_by(requests.c.created_at)).mappings()
            return [dict(row) for row in rows]

    def last_request(self) -> Request:
        """The last turn's request."""
        turn_id = self.requests()[-1]["turn_id"]
        return self.turn(turn_id).request


Start = Callable[..., Gateway]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    run_dir: Path,
    engine: FakeEngine | None = None,
    *,
    rollout: Mapping[str, Any] | None = None,
    policies: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    patience_s: float = PATIENCE_S,
    **serving: Any,
) -> Iterator[Gateway]:
    """A gateway for the time of a block; `serving`, `rollout`, `policies` and `training` fill those sections."""
    engine = engine or FakeEngine()
    config = Config.model_validate({
        "run_dir": run_dir,
        "serving": {"port": free_port(), **serving},
        "rollout": rollout or {},
        "policies": policies or {},
        "training": training or {},
        "supervisor": {"shutdown_timeout_s": 3},
    })  # fmt: skip
    store = Store.open(config.store_path, patience_s=patience_s)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve(config, store, engine, stop))
        except BaseException as error:  # noqa: BLE001 - the test fails with it, on its own thread
            failures.append(error)

    thread = threading.Thread(target=work, name="gateway")
    thread.start()
    url = f"http://127.0.0.1:{config.serving.port}"
    http = httpx.Client(base_url=url, timeout=20, verify=False)  # loading certificates takes longer than a test
    official_http = openai.DefaultHttpxClient(verify=False)
    gateway = Gateway(config=config, store=store, engine=engine, url=url, http=http, official_http=official_http)
    try:
        if not engine.down:
            wait_until(lambda: bool(failures) or _ready(http))
        yield gateway
    finally:
        http.close()
        official_http.close()
        stop.set()
        thread.join(20)
        store.close()
    assert not thread.is_alive()
    assert not failures


def _ready(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for a condition, and fail where it does not come."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for the tests of a module that only look at their own requests."""
    with running(tmp_path_factory.mktemp("gateway") / "run") as gateway:
        yield gateway


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway of the test's own."""
    with running(tmp_path / "run") as started:
        yield started
