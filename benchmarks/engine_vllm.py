"""vLLM in the engine benchmark: its own server from `.venv-vllm`, asked over loopback for token ids.

Its HTTP is within the time, which at these sizes is little; everything else is as for the other sides.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine_sides import Round, Task
from benchmarks.gateway_processes import ask, free_port

VENV = Path(__file__).resolve().parents[1] / ".venv-vllm"
START_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.5
LORA = "adapted"
SHOWN = 300
"""Characters of an error of its own."""


class NotHere(RuntimeError):
    """It cannot be measured on this machine; the message is a sentence."""


class Vllm:
    """A server process with the adapter loaded; one request each on a connection of its own."""

    def __init__(self, task: Task, *, parallel: int, directory: Path) -> None:
        """Start it, and wait until it can be asked.

        Raises:
            NotHere: it is not installed, or does not start.
        """
        python = VENV / "bin" / "python"
        if not python.exists():
            raise NotHere(f"vLLM is not installed here: there is no {VENV.name} (`make vllm` makes it).")
        self._task = task
        self._port = free_port()
        self._log = directory / "vllm.log"
        command = [
            str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(task.model),
            "--host", "127.0.0.1", "--port", str(self._port), "--dtype", task.dtype,
            "--max-num-seqs", str(parallel), "--max-model-len", str(task.prompt_tokens + task.new_tokens),
            "--enable-lora", "--lora-modules", f"{LORA}={task.adapter / 'adapter'}",
        ]  # fmt: skip
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "OMP_NUM_THREADS": str(task.threads),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # as free as the other sides' threads
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        try:
            self._wait_ready()
        except BaseException:
            self.close()
            raise

    def generate(self, prompts: Sequence[Sequence[int]]) -> Round:
        """Ask for all of them, `apart_s` apart, and wait for the last."""
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            answers = [pool.submit(self._ask, prompt, number, begin) for number, prompt in enumerate(prompts)]
            logprobs = tuple(answer.result() for answer in answers)
        return Round(seconds=time.perf_counter() - begin, logprobs=logprobs)

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, prompt: Sequence[int], number: int, begin: float) -> tuple[float, ...]:
        time.sleep(max(0.0, begin + number * self._task.apart_s - time.perf_counter()))
        body = {
            "model": LORA,
            "prompt": list(prompt),
            "max_tokens": self._task.new_tokens,
            "temperature": 1.0,
            "seed": number,
            "logprobs": 0,
            "ignore_eos": True,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_TIMEOUT_S)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            said = response.read()
        finally:
            connection.close()
        if response.status != http.client.OK:
            words = said.decode(errors="replace")[:SHOWN]
            raise NotHere(f"vLLM answered {response.status} in the middle of the measurement: {words}")
        return tuple(json.loads(said)["choices"][0]["logprobs"]["token_logprobs"])

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if ask(self._port, "GET", "/health") == http.client.OK:
                    return
            except (OSError, http.client.HTTPException):
                pass  # it does not listen yet
            time.sleep(POLL_S)
        said = self._log.read_text(errors="replace").strip().splitlines()
        raise NotHere(f"vLLM did not start: {said[-1] if said else 'it said nothing'}")
