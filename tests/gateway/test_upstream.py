"""The gateway's own entry on `engine.kind = "openai"`, and what `up` and `status` say of the upstream."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from openclaw_rl.config import Config
from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.serving.engines.openai import watcher
from openclaw_rl.serving.engines.openai.client import OpenAIEngine
from openclaw_rl.serving.engines.replicas.engine import ReplicatedEngine
from openclaw_rl.serving.gateway import server
from openclaw_rl.serving.gateway.app import Services, _upstreams
from openclaw_rl.serving.gateway.refusing import RefusingEngine
from openclaw_rl.store import Store
from openclaw_rl.types import LoopName, Turn, TurnState
from tests.engines.openai.upstream import EXACT, PLAIN, Reply, Upstream, delta, exact, listening
from tests.gateway.conftest import free_port, wait_until


@dataclass(frozen=True, kw_only=True)
class Served:
    """A gateway before an upstream."""

    config: Config
    http: httpx.Client
    store: Store

    def ask(self, text: str = "Hi", **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        return self.http.post("/v1/chat/completions", json={"model": "policy", "messages": messages, **body})

    def turn(self, answer: httpx.Response) -> Turn:
        found = self.store.turns.get(answer.headers["x-turn-id"])
        assert found is not None
        return found


@contextlib.contextmanager
def serving(upstream: Upstream, run_dir: Path) -> Iterator[Served]:
    config = Config.model_validate({
        "run_dir": run_dir,
        "serving": {"port": free_port(), "engine_wait_s": 0.3},
        "engine": {"kind": "openai", "urls": [upstream.url], "upstream_model": "big"},
        "training": {"enabled": False},
        "supervisor": {"shutdown_timeout_s": 3},
    })  # fmt: skip
    store, stop = Store.open(config.store_path), threading.Event()
    thread = threading.Thread(target=server.run, args=(config, stop))
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{config.serving.port}", timeout=20, verify=False) as http:
            wait_until(lambda: _ready(http), timeout_s=30)
            yield Served(config=config, http=http, store=store)
    finally:
        stop.set()
        thread.join(20)
        store.close()
    assert not thread.is_alive()


def _ready(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def error_of(response: httpx.Response) -> tuple[int, str, str | None]:
    said = response.json()["error"]
    return response.status_code, said["code"], said["param"]


def test_answers_and_failures_as_clients_see_them(tmp_path: Path) -> None:
    wrong = {"error": {"message": "stop is too long", "param": "stop", "code": "invalid_value"}}
    replies = [
        EXACT,
        Reply(status=400, body=wrong),
        Reply(status=401, body={"error": {"message": "no such key"}}),
        Reply(status=429, headers=(("retry-after", "7"),), body={"error": {"message": "slow down"}}),
        Reply(status=500, body={}),
        Reply(status=503, headers=(("retry-after", "9"),), body={}),
    ]
    with listening(*replies) as upstream, serving(upstream, tmp_path / "run") as served:
        told = served.ask()
        tokens = served.turn(told).tokens
        assert (tokens.prompt_ids, tokens.response_ids, tokens.logprobs) == ((1, 2), (5, 6), (-0.5, -0.6))
        assert told.json()["choices"][0]["message"]["content"] == "Good day."
        assert error_of(served.ask()) == (400, "invalid_value", "stop")
        refused = served.ask()
        assert error_of(refused) == (502, "upstream_key_refused", None)
        assert "OPENCLAW_RL_ENGINE__API_KEY" in refused.json()["error"]["message"]
        limited = served.ask()
        assert error_of(limited) == (429, "engine_overloaded", None)
        assert limited.headers["retry-after"] == "7"
        assert error_of(served.ask())[:2] == (502, "engine_error")
        began = time.monotonic()
        assert error_of(served.ask())[:2] == (503, "engine_unavailable")
        assert time.monotonic() - began < 5
        assert len(upstream.asked) <= len(replies) + 2, "a 503 is not hammered"


def test_a_turn_without_ids_is_served_judged_and_then_excluded(tmp_path: Path) -> None:
    with listening(PLAIN) as upstream, serving(upstream, tmp_path / "run") as served:
        answer = served.ask()
        assert answer.json()["usage"]["completion_tokens"] == 2
        history = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Good day."},
            {"role": "user", "content": "Too long."},
        ]
        served.ask(messages=history)
        for _ in range(3):
            run_pass(served.store, served.config, time.time())
        assert served.turn(answer).state is TurnState.JUDGING
        assert served.ask(logprobs=True).status_code == 200, "two answers may have been without ids by chance"
        assert error_of(served.ask(logprobs=True)) == (400, "unsupported_parameter", "logprobs")


def test_tool_calls_go_through_and_a_client_that_leaves_is_noticed_upstream(tmp_path: Path) -> None:
    calls = [{"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a"'}}]
    rest = [{"index": 0, "function": {"arguments": ": 1}"}}]
    called = Reply(events=[
        {"choices": [{"index": 0, "delta": {"tool_calls": calls}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": rest}}]},
        delta(finish="tool_calls"),
    ])  # fmt: skip
    endless = Reply(events=[exact("word ", 5)] * 500, pause_s=0.01)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    with listening(called, endless) as upstream, serving(upstream, tmp_path / "run") as served:
        choice = served.ask(tools=[tool]).json()["choices"][0]
        function = choice["message"]["tool_calls"][0]["function"]
        assert (choice["finish_reason"], function) == ("tool_calls", {"name": "look", "arguments": '{"a": 1}'})
        assert upstream.asked[0]["tools"] == [tool]
        body = {"model": "policy", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
            next(response.iter_lines())
        wait_until(lambda: upstream.left_early == 1)


def test_the_watcher_says_which_kind_of_upstream_it_is(tmp_path: Path) -> None:
    with listening(PLAIN) as upstream:
        engine = {"kind": "openai", "urls": [upstream.url], "upstream_model": "big"}
        config = Config.model_validate({"run_dir": tmp_path, "engine": engine, "training": {"enabled": False}})
        store = Store.open(config.store_path)
        try:
            with watching(config):
                wait_until(lambda: said_of(upstream, store) == NO_IDS)
        finally:
            store.close()


def test_what_answers_tell_later_is_said_too_without_asking_again(tmp_path: Path) -> None:
    with (
        listening(EXACT, PLAIN, PLAIN, PLAIN, EXACT) as upstream,
        serving(upstream, tmp_path / "run") as served,
        watching(served.config),
    ):
        wait_until(lambda: said_of(upstream, served.store) == IDS)
        assert [served.ask().status_code for _ in range(3)] == [200] * 3
        wait_until(lambda: said_of(upstream, served.store) == NO_IDS)
        served.ask()
        wait_until(lambda: said_of(upstream, served.store) == IDS)
        assert len(upstream.asked) == 5, "one probe, and what the client asked"


def test_each_of_several_upstreams_is_told_of_by_itself() -> None:
    async def main() -> None:
        with listening(EXACT) as one, listening(PLAIN) as other:
            each = {upstream.url: OpenAIEngine(upstream.url, model="big") for upstream in (one, other)}
            engine = RefusingEngine(ReplicatedEngine(each), lambda: False)
            services = cast(Services, SimpleNamespace(engine=engine))
            try:
                assert _upstreams(services) == {one.url: {}, other.url: {}}
                await asyncio.gather(*(adapter.probe() for adapter in each.values()))
                assert _upstreams(services) == {
                    one.url: {"token_ids": True, "logprobs": True},
                    other.url: {"token_ids": False, "logprobs": False},
                }
            finally:
                await engine.close()

    asyncio.run(asyncio.wait_for(main(), 30))


NO_IDS = "served and judged, not trainable: the upstream returns no token ids"
IDS = "served and judged; the upstream returns token ids and log-probabilities, but loads no versions"


@contextlib.contextmanager
def watching(config: Config) -> Iterator[None]:
    """The engine's loop for the time of a block."""
    stop = threading.Event()
    thread = threading.Thread(target=watcher.run, args=(config, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


def said_of(upstream: Upstream, store: Store) -> str:
    """What the engine's loop says of the upstream, without its address."""
    activity = next((one.activity for one in store.status.loops() if one.loop is LoopName.ENGINE), "")
    host = upstream.url.removeprefix("http://").removesuffix("/v1")
    return activity.removeprefix(f"{host}: ")


@pytest.mark.parametrize("key", [None, "sk-1"])
def test_up_refuses_before_anything_is_started(tmp_path: Path, key: str | None) -> None:
    reply = PLAIN if key else Reply(status=401, body={"error": {"message": "no key given"}})
    with listening(reply) as upstream:
        flags = ["--backend", "openai", "--engine.urls", upstream.url, "--engine.upstream_model", "big"]
        command = [sys.executable, "-m", "openclaw_rl.cli", "up", *flags, "--run-dir", str(tmp_path / "run")]
        environ = {**os.environ, **({"OPENCLAW_RL_ENGINE__API_KEY": key} if key else {})}
        ended = subprocess.run(
            [*command, "--serving.port", "0"], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
    assert ended.returncode == 2
    line = ended.stderr.strip().splitlines()[-1]
    expected = "needs the ids of the tokens" if key else "set engine.api_key (OPENCLAW_RL_ENGINE__API_KEY)"
    assert expected in line
    assert not (tmp_path / "run" / "supervisor.json").exists()
    assert upstream.keys[-1] == (f"Bearer {key}" if key else None)
