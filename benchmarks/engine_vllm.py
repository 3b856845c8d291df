"""vLLM in the engine benchmark: the server that `--backend vllm` starts, asked at its socket for token ids.

Its HTTP is within the time, which at these sizes is little; everything else is as for the other sides.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from benchmarks.engine_sides import Round, Task
from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.serving.engines.installed import check_installed
from openclaw_rl.serving.engines.vllm.launch import PACKAGE, find_python, server_command, server_environment

START_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.5
LORA = "adapted"
SHOWN = 300
"""Characters of an error of its own."""
ERROR = re.compile(r"\b\w+(Error|Exception): ")


class NotHere(RuntimeError):
    """It cannot be measured on this machine; the message is a sentence."""


class Vllm:
    """A server process with the adapter loaded; one request each on a connection of its own."""

    def __init__(self, task: Task, *, parallel: int, directory: Path) -> None:
        """Start it, and wait until it can be asked.

        Raises:
            NotHere: it is not installed, or does not start.
        """
        config = _config(task, parallel=parallel, directory=directory)
        try:
            python = find_python(config)
            check_installed(PACKAGE, python)
        except ConfigError as error:
            raise NotHere(str(error)) from error
        self._task = task
        self._log = directory / "vllm.log"
        socket = directory / "vllm.socket"
        command = server_command(
            config, python=python, model=task.model, context=config.engine.context_length, socket=socket
        )
        environment = {**server_environment(config, os.environ), "OMP_NUM_THREADS": str(task.threads)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._http = httpx.Client(
            base_url="http://localhost",
            transport=httpx.HTTPTransport(uds=str(socket), limits=httpx.Limits(max_connections=parallel)),
            timeout=ANSWER_TIMEOUT_S,
        )
        try:
            self._wait_ready()
        except BaseException:
            self.close()
            raise

    def generate(self, prompts: Sequence[Sequence[int]]) -> Round:
        """Ask for all of them, `apart_s` apart, and wait for the last.

        Raises:
            NotHere: it answered with an error, or not at all.
        """
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            answers = [pool.submit(self._ask, prompt, number, begin) for number, prompt in enumerate(prompts)]
            logprobs = tuple(answer.result() for answer in answers)
        return Round(seconds=time.perf_counter() - begin, logprobs=logprobs)

    def close(self) -> None:
        """End the server, and whatever it leaves of what it has started."""
        self._http.close()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ask(self, prompt: Sequence[int], number: int, begin: float) -> tuple[float, ...]:
        time.sleep(max(0.0, begin + number * self._task.apart_s - time.perf_counter()))
        body = {
            "model": LORA,
            "prompt": list(prompt),
            "max_tokens": self._task.new_tokens,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,  # its defaults are the model's own, which may cut what is drawn
            "seed": number,
            "logprobs": 0,
            "ignore_eos": True,
        }
        try:
            answer = self._http.post("/v1/completions", json=body)
        except httpx.TransportError as error:
            raise NotHere(f"vLLM did not answer in the middle of the measurement: {self._last_word()}") from error
        if answer.status_code != httpx.codes.OK:
            raise NotHere(f"vLLM answered {answer.status_code} in the middle of the measurement: {self._last_word()}")
        return tuple(answer.json()["choices"][0]["logprobs"]["token_logprobs"])

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self._http.get("/health").status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            time.sleep(POLL_S)
        raise NotHere(f"vLLM did not start: {self._last_word()}")

    def _last_word(self) -> str:
        """The last line of its output that names an error; where none does, the last one."""
        said = self._log.read_text(errors="replace").strip().splitlines()
        errors = [line for line in said if ERROR.search(line)]
        return (errors or said or ["it said nothing"])[-1][:SHOWN]


def _config(task: Task, *, parallel: int, directory: Path) -> Config:
    """That of a deployment whose policy is the task's model, with the task's adapter loaded at the start."""
    engine = {
        "kind": "vllm",
        "max_parallel": parallel,
        "context_length": task.prompt_tokens + task.new_tokens,
        "extra_args": ["--lora-modules", f"{LORA}={task.adapter / 'adapter'}"],
    }
    model = {"path": str(task.model), "dtype": task.dtype}
    training = {"gate": {"probes": 0}}  # nothing is trained: the context needs no room for them
    return Config.model_validate(
        {"run_dir": directory / "run", "model": model, "engine": engine, "training": training}
    )
