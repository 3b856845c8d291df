"""A deployment as the README starts it, with a script for an engine and a tiny random model for the trainer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from openclaw_rl.testing.tiny_model import build_tiny_model
from tests.docs.pages import ROOT

ANSWER = "The tide is the rise and fall of the sea."
DOCUMENTED_ADDRESS = "127.0.0.1:8000"
START = "openclaw-rl up recipes/combine.toml"
READY_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """A folder that looks like a checkout after `make install`, and the environment of a shell in it.

    The environment replaces the model by a tiny one and the engine by a script; all else is the documented command's.
    `port` stands in for the documented 8000.
    """

    folder: Path
    port: int
    environment: Mapping[str, str]

    @property
    def run_dir(self) -> Path:
        return self.folder / "openclaw-run"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def adapted(self, text: str) -> str:
        return text.replace(DOCUMENTED_ADDRESS, f"127.0.0.1:{self.port}")

    def shell(self, command: str, stdin: str = "", timeout_s: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run a command as a person would."""
        return subprocess.run(
            ["bash", "-c", self.adapted(command)],
            cwd=self.folder,
            env=dict(self.environment),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def python(self, program: str) -> subprocess.CompletedProcess[str]:
        """Run a Python example."""
        return subprocess.run(
            [sys.executable, "-"],
            cwd=self.folder,
            env=dict(self.environment),
            input=self.adapted(program),
            capture_output=True,
            text=True,
            timeout=120.0,
            check=False,
        )


def make_workplace(folder: Path) -> Workplace:
    (folder / "recipes").symlink_to(ROOT / "recipes")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "models").mkdir()
    tiny = build_tiny_model(folder / "models" / "my-model")
    script = folder / "script.json"
    script.write_text(json.dumps([{"text": ANSWER}]), encoding="utf-8")
    port = free_port()
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("OPENCLAW_RL_") and name != "PRM_M"
    }
    environment = {
        **kept,
        "HOME": str(folder),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}",
        "OPENCLAW_RL_MODEL__PATH": str(tiny),
        "OPENCLAW_RL_ENGINE__KIND": "scripted",
        "OPENCLAW_RL_ENGINE__SCRIPT": str(script),
        "OPENCLAW_RL_SERVING__PORT": str(port),
        "OPENCLAW_RL_ROLLOUT__BATCH_SIZE": "1",
        "OPENCLAW_RL_TRAINING__LOG": "jsonl,tensorboard",
        # A random model has no language to lose, and the gate would find it lost.
        "OPENCLAW_RL_TRAINING__GATE__PROBES": "0",
        "OPENCLAW_RL_TRAINING__GATE__MAX_PROBE_DROP": "50",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "NO_PROXY": "127.0.0.1",
    }
    return Workplace(folder=folder, port=port, environment=environment)


class Started:
    """`openclaw-rl up`, started in a workplace and ended by Ctrl-C."""

    def __init__(self, workplace: Workplace) -> None:
        self._log = workplace.folder / "up.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", f"exec {START}"],
                cwd=workplace.folder,
                env=dict(workplace.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self._process.poll() is None, self.said()
            return "ready after" in self.said()

        eventually(ready, "openclaw-rl up is ready", READY_S)

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(60)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()


def react(url: str) -> None:
    """One answer and a correction: what becomes a sample, and with batches of one a step.

    In a session of its own: other tests ask the same, and the script answers all of them in the same words.
    """
    asked = [{"role": "user", "content": "What is a tide?"}]
    headers = {"X-Session-Id": "reacting"}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:

        def answer(messages: list[dict[str, str]]) -> str:
            response = client.post("/v1/chat/completions", json={"model": "policy", "messages": messages})
            response.raise_for_status()
            return str(response.json()["choices"][0]["message"]["content"])

        asked.append({"role": "assistant", "content": answer(asked)})
        asked.append({"role": "user", "content": "That is too long. One short sentence, please."})
        answer(asked)


def served_version(url: str) -> int | None:
    version = httpx.get(f"{url}/readyz", timeout=10, trust_env=False).json()["version"]
    return None if version is None else int(version)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Wait until `condition()` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.1)
