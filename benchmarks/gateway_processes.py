"""The processes of the gateway benchmark: the engine, and one contender each way of putting something before it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openclaw_rl.config import Config, EngineConfig, ServingConfig
from openclaw_rl.config_render import write_private_json

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
INSTALL_TIMEOUT_S = 1200.0
LITELLM_VENV = Path(__file__).resolve().parents[1] / ".venv-litellm"
LITELLM = "litellm[proxy]"


class NotStarted(RuntimeError):
    """A process ended, or said nothing, before it could be asked."""


class NotInstalled(RuntimeError):
    """LiteLLM cannot be installed here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """Something that answers `POST /v1/chat/completions` on `port`; `ready_path` says 200 once it can."""

    name: str
    port: int
    command: Sequence[str]
    ready_path: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def engine() -> Contender:
    """The engine itself, asked directly."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.gateway_engine", str(port)]
    return Contender(name="bare", port=port, command=command, ready_path="/health")


def passthrough(engine_port: int) -> Contender:
    """The minimal proxy."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.gateway_passthrough", str(port), f"http://127.0.0.1:{engine_port}"]
    return Contender(name="passthrough", port=port, command=command)


def litellm(engine_port: int, directory: Path, key: str) -> Contender:
    """LiteLLM's proxy as its documentation starts it: one worker, no database, in an environment of its own.

    It does not start without a key, so the clients send one to everybody.

    Raises:
        NotInstalled: it is not there, and cannot be fetched.
    """
    program = install_litellm()
    parameters = {
        "model": "openai/policy",
        "api_base": f"http://127.0.0.1:{engine_port}/v1",
        "api_key": "none",
    }
    models = [{"model_name": "policy", "litellm_params": parameters}]
    config = directory / "litellm.yaml"
    settings = {"litellm_settings": {"telemetry": False}, "general_settings": {"master_key": key}}
    config.write_text(json.dumps({"model_list": models, **settings}))  # JSON is YAML
    port = free_port()
    return Contender(
        name="litellm",
        port=port,
        command=[str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)],
        ready_path="/health/liveliness",
        environment={"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # nothing fetched at its start
    )


def gateway(engine_port: int, directory: Path) -> Contender:
    """Our gateway's own process, recording into a fresh store."""
    port = free_port()
    config = Config(
        run_dir=directory / "run",
        serving=ServingConfig(port=port),
        engine=EngineConfig(port=engine_port),
    )
    config.run_dir.mkdir(parents=True)
    path = config.run_dir / "config.json"
    write_private_json(config, path)
    command = [sys.executable, "-m", "openclaw_rl.supervision.child", "gateway", "--config", str(path)]
    return Contender(name="gateway", port=port, command=command, ready_path="/readyz")


def install_litellm() -> Path:
    """LiteLLM's program, installed into `.venv-litellm` where it is not there yet.

    Raises:
        NotInstalled: with what pip said last.
    """
    program = LITELLM_VENV / "bin" / "litellm"
    if program.exists():
        return program
    python = LITELLM_VENV / "bin" / "python"
    try:
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(LITELLM_VENV)],
            [str(python), "-m", "pip", "install", "--quiet", LITELLM],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        raise NotInstalled((error.stderr.strip().splitlines() or ["it said nothing"])[-1]) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from error
    return program


def litellm_version() -> str:
    """The version that is installed."""
    python = str(LITELLM_VENV / "bin" / "python")
    ask = "import importlib.metadata; print(importlib.metadata.version('litellm'))"
    return subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@contextlib.contextmanager
def running(contender: Contender, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start it, wait until it can be asked, and end it afterwards; its output goes to a file in `directory`.

    Raises:
        NotStarted: with its last words.
    """
    log = directory / f"{contender.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            contender.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **contender.environment},
            cwd=LITELLM_VENV.parent,
        )
    try:
        _wait_ready(contender, process, log)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(contender: Contender, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError, http.client.HTTPException):  # it does not listen yet
            if contender.ready_path is None:
                socket.create_connection(("127.0.0.1", contender.port), timeout=1).close()
                return
            if ask(contender.port, "GET", contender.ready_path) == http.client.OK:
                return
        time.sleep(0.1)
    said = log.read_text(errors="replace").strip().splitlines()
    raise NotStarted(f"{contender.name} did not start: {said[-1] if said else 'it said nothing'}")


def ask(port: int, method: str, path: str, body: object = None) -> int:
    """Ask once; the status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()
