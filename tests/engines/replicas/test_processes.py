"""Three engine processes behind one gateway, all over real HTTP, one of them killed while it streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import pytest

from openclaw_rl.config import Config
from openclaw_rl.config_render import write_private_json
from openclaw_rl.serving.engines.replicas.drains import DrainList
from openclaw_rl.serving.gateway import server
from openclaw_rl.store import Store
from openclaw_rl.supervision.ports import engine_addresses, resolve_ports
from openclaw_rl.supervision.state import child_config_path
from tests.gateway.conftest import wait_until
from tests.store.helpers import candidate, step_record

LONG = "word " * 30
SCRIPT = [{"match": "long", "text": LONG, "delay_per_token_s": 0.02}, {"text": "Short."}]
READY_S = 90.0


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """What a client read: the text, and how it ended (a finish reason, or an error's code)."""

    text: str
    end: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Three:
    """The engines' process, the gateway's client, the record."""

    config: Config
    pool: subprocess.Popen[bytes]
    http: httpx.Client
    store: Store

    def replicas(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.http.get("/readyz").json()["replicas"]
        return found

    def process(self, number: int) -> psutil.Process:
        mine = psutil.Process(self.pool.pid).children()
        (found,) = [one for one in mine if one.cmdline()[-5:-4] == [str(number)]]
        return found

    def ask(self, session: str, text: str = "short") -> Streamed:
        body = {"model": "policy", "stream": True, "messages": [{"role": "user", "content": text}]}
        said, end, headers = "", "", {"X-Session-Id": session}
        with self.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            if response.status_code != 200:
                return Streamed(text="", end=str(response.status_code), version="")
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    end = event["error"]["code"] if "error" in event else end
                    for choice in event.get("choices", ()):
                        said += choice["delta"].get("content") or ""
                        end = choice["finish_reason"] or end
        return Streamed(text=said, end=end, version=response.headers["x-policy-version"])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    folder = tmp_path_factory.mktemp("three")
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    config = resolve_ports(
        Config.model_validate({
            "run_dir": folder / "run",
            "serving": {"port": 0, "engine_wait_s": 10.0},
            "engine": {"kind": "scripted", "script": script, "replicas": 3, "context_length": 8192, "threads": 1},
            "supervisor": {"shutdown_timeout_s": 6, "restart_backoff_s": 0.2},
        })
    )  # fmt: skip
    config.logs_dir.mkdir(parents=True)
    write_private_json(config, child_config_path(config.run_dir))
    store = Store.open(config.store_path)
    command = [sys.executable, "-m", "openclaw_rl.supervision.child", "engine", "--parent", str(os.getpid())]
    pool = subprocess.Popen([*command, "--config", str(child_config_path(config.run_dir))], stderr=subprocess.DEVNULL)
    stop = threading.Event()
    gateway = threading.Thread(target=server.run, args=(config, stop))
    gateway.start()
    url = f"http://127.0.0.1:{config.serving.port}"
    try:
        with httpx.Client(base_url=url, timeout=30, verify=False) as http:
            started = Three(config=config, pool=pool, http=http, store=store)
            wait_until(lambda: _all_ready(started), timeout_s=READY_S)
            yield started
    finally:
        stop.set()
        gateway.join(20)
        left = psutil.Process(pool.pid).children()
        pool.terminate()
        code = pool.wait(20)
        store.close()
    assert code == 0
    assert not any(one.is_running() for one in left), "no replica outlives the engine's process"


def _all_ready(three: Three, *versions: int) -> bool:
    try:
        return all(one["state"] == "ready" and set(versions) <= set(one["versions"]) for one in three.replicas())
    except (httpx.TransportError, KeyError):
        return False


def test_one_is_killed_while_it_streams_and_the_others_go_on(three: Three) -> None:
    three.store.samples.commit_step(step_record(1), candidate(1))
    three.store.versions.serve(1)
    wait_until(lambda: three.http.get("/readyz").json()["version"] == 1)
    assert _all_ready(three, 1), "in service, so every replica has it"

    with ThreadPoolExecutor(12) as clients:
        streams = [clients.submit(three.ask, f"s{number}", "long") for number in range(12)]
        wait_until(lambda: sum(one["requests"] for one in three.replicas()) == 12)
        time.sleep(0.3)  # so that the first tokens are there
        busy = [one["requests"] for one in three.replicas()]
        victim = busy.index(max(busy))
        three.process(victim).send_signal(signal.SIGKILL)
        while not all(stream.done() for stream in streams) or not _all_ready(three, 1):
            meanwhile = three.ask(f"new-{victim}")
            assert (meanwhile.text, meanwhile.end, meanwhile.version) == ("Short.", "stop", "1")
        ended = [stream.result() for stream in streams]

    broken = [stream for stream in ended if stream.end != "stop"]
    assert {stream.end for stream in broken} == {"replica_lost"}
    assert len(broken) <= busy[victim], "those of the one that was killed, and of them none without a token"
    assert all(stream.text == LONG for stream in ended if stream not in broken)
    assert all(LONG.startswith(stream.text) for stream in broken)
    assert list(engine_addresses(three.config))[victim] == three.replicas()[victim]["url"]


def test_a_drained_one_gets_nothing_new_and_then_is_back(three: Three) -> None:
    url = next(iter(engine_addresses(three.config)))
    drains = DrainList(three.config.run_dir)
    drains.write(frozenset({url}))
    wait_until(lambda: three.replicas()[0]["state"] == "draining")
    assert {three.ask(f"while-{number}").end for number in range(6)} == {"stop"}
    drains.write(frozenset())
    wait_until(lambda: _all_ready(three))
