"""Resident memory over many sessions: 1,000 at once, then 10,000 one after the other; it has to level out.

A real gateway and a real rollout loop as processes of their own, on the scripted engine and a new store. Sampled is
what each of the three holds (RSS); the verdict is the growth over the second half of the sequential sessions.
"""

from __future__ import annotations

if __name__ == "__main__":  # run as a file: before the imports below, which want the repository on the path
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.__main__ import main

    sys.exit(main([Path(__file__).stem, *sys.argv[1:]]))

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from openclaw_rl.config import Config, EngineConfig, RolloutConfig, ServingConfig
from openclaw_rl.config_render import write_private_json
from openclaw_rl.supervision.supervisor import prepare
from openclaw_rl.types import LoopName

LOOPS = (LoopName.ENGINE, LoopName.GATEWAY, LoopName.ROLLOUT)
MEASURED = (LoopName.GATEWAY, LoopName.ROLLOUT)
START_TIMEOUT_S = 120.0
SETTLE_S = 3.0
PATIENCE_S = 300.0
"""How long a client goes on asking when it is told to come back later."""
MIB = 2**20
LEVEL_MIB_PER_1000 = 1.0
"""Growth over the second half, MiB per 1,000 sessions, below which memory is said to level out."""
BARS = "▁▂▃▄▅▆▇█"
ANSWER = "Noted, thank you."  # the scripted engine draws a token a byte, and it is not what is measured


@dataclass(kw_only=True)
class Trace:
    """How many sessions had ended when a sample was taken, and what each process then held, MiB."""

    sessions: list[int] = field(default_factory=list)
    mib: dict[str, list[float]] = field(default_factory=dict)

    def take(self, sessions: int, processes: Mapping[LoopName, psutil.Process]) -> None:
        """Sample now."""
        self.sessions.append(sessions)
        for loop, process in processes.items():
            self.mib.setdefault(loop.value, []).append(process.memory_info().rss / MIB)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--concurrent", type=int, default=1000, help="sessions open at once")
    parser.add_argument("--turns", type=int, default=3, help="turns of each of those")
    parser.add_argument("--sequential", type=int, default=10_000, help="sessions one after the other")
    parser.add_argument("--lanes", type=int, default=4, help="how many of these go on side by side")
    parser.add_argument("--plot", type=Path, help="draw the curves into this PNG")
    parser.add_argument("--json", action="store_true", help="without the curves as text")


def run(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Start the processes, put the sessions through them, and say what memory did."""
    with tempfile.TemporaryDirectory() as directory:
        config = _config(Path(directory), arguments.concurrent)
        with _processes(config) as processes:
            return asyncio.run(_measure(config, processes, arguments))


def verdict(trace: Trace) -> Mapping[str, Any]:
    """For each process: what it held at the start, half-way and at the end of a trace, and its growth since half-way.

    The slope is Theil and Sen's: the median over all pairs of samples, which single jumps do not move.
    """
    half = len(trace.sessions) // 2
    figures: dict[str, Any] = {}
    for name, held in trace.mib.items():
        slope = _slope(trace.sessions[half:], held[half:])
        figures[name] = {
            "start_mib": round(held[0], 1),
            "half_mib": round(held[half], 1),
            "end_mib": round(held[-1], 1),
            "growth_second_half_mib": round(held[-1] - held[half], 2),
            "slope_mib_per_1000_sessions": round(1000 * slope, 3),
            "levels_out": 1000 * slope < LEVEL_MIB_PER_1000,
        }
    return figures


def _slope(places: Sequence[int], values: Sequence[float]) -> float:
    pairs = [
        (values[later] - values[earlier]) / (places[later] - places[earlier])
        for earlier in range(len(places))
        for later in range(earlier + 1, len(places))
        if places[later] > places[earlier]
    ]
    return statistics.median(pairs) if pairs else 0.0


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """A curve in one line of text, from its lowest to its highest value."""
    step = max(1, len(values) // width)
    means = [statistics.fmean(values[place : place + step]) for place in range(0, len(values), step)]
    low, high = min(means), max(means)
    return "".join(BARS[round((value - low) / ((high - low) or 1.0) * (len(BARS) - 1))] for value in means)


# --- the processes -----------------------------------------------------------------------------------------


def _config(directory: Path, concurrent: int) -> Config:
    script = directory / "script.json"
    script.write_text(json.dumps([{"text": ANSWER}]), encoding="utf-8")
    return prepare(
        Config(
            run_dir=directory / "run",
            serving=ServingConfig(port=0, max_queue=concurrent + 64, engine_wait_s=120.0),
            engine=EngineConfig(kind="scripted", script=script),
            rollout=RolloutConfig(idle_timeout_s=20.0),  # so that sessions end while it goes on
        )
    )


@contextlib.contextmanager
def _processes(config: Config) -> Iterator[dict[LoopName, psutil.Process]]:
    config.run_dir.mkdir(parents=True, exist_ok=True)
    path = config.run_dir / "config.json"
    write_private_json(config, path)
    child = [sys.executable, "-m", "openclaw_rl.supervision.child"]
    with open(config.run_dir / "log", "ab") as log:
        started = {
            loop: subprocess.Popen(
                [*child, loop.value, "--config", str(path), "--parent", str(os.getpid())], stdout=log, stderr=log
            )
            for loop in LOOPS
        }
        try:
            yield {loop: psutil.Process(started[loop].pid) for loop in MEASURED}
        finally:
            for process in started.values():
                process.terminate()
            for process in started.values():
                process.wait(60)


# --- the sessions ------------------------------------------------------------------------------------------


async def _measure(
    config: Config, processes: Mapping[LoopName, psutil.Process], arguments: argparse.Namespace
) -> Mapping[str, Any]:
    begin = time.monotonic()
    trace = Trace()
    async with _client(config, arguments.concurrent) as client:
        await _ready(client, config)
        fresh = Trace()
        fresh.take(0, processes)
        async with asyncio.TaskGroup() as group:
            for number in range(arguments.concurrent):
                group.create_task(_session(client, f"c{number}", arguments.turns))
        await asyncio.sleep(SETTLE_S)
        fresh.take(arguments.concurrent, processes)
        await _one_after_the_other(client, trace, processes, arguments)
        lost = (await client.get("/readyz")).json()["turns_not_recorded"]
    figures = {
        "concurrent": arguments.concurrent,
        "sequential": arguments.sequential,
        "seconds": round(time.monotonic() - begin, 1),
        "turns_not_recorded": lost,
        "rss_mib": {name: [round(value, 1) for value in held] for name, held in fresh.mib.items()},
        **verdict(trace),
    }
    if not arguments.json:
        for name, held in trace.mib.items():
            print(f"{name:<8} {min(held):6.1f} MiB {sparkline(held)} {max(held):6.1f} MiB", file=sys.stderr)
    if arguments.plot is not None:
        _draw(trace, arguments.plot)
    return figures


@contextlib.asynccontextmanager
async def _client(config: Config, connections: int) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://{config.serving.host}:{config.serving.port}"
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=64)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=300, verify=False, trust_env=False) as client:
        yield client


async def _ready(client: httpx.AsyncClient, config: Config) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            answer = await client.get("/readyz")
            if answer.status_code == 200 and LoopName.ROLLOUT.value in (answer.json()["loops"] or {}):
                return
        await asyncio.sleep(0.2)
    raise RuntimeError(f"not ready: {(config.run_dir / 'log').read_text(encoding='utf-8')[-2000:]}")


async def _session(client: httpx.AsyncClient, name: str, turns: int) -> None:
    """A conversation that grows by a question and an answer each turn; its questions are like no other's."""
    messages: list[dict[str, str]] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn} of session {name}, which is {name * 8}."})
        answer = await _ask(client, messages)
        messages.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})


async def _ask(client: httpx.AsyncClient, messages: list[dict[str, str]]) -> httpx.Response:
    """One answer; a machine that cannot keep up with all of them at once says when to come back."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = await client.post("/v1/chat/completions", json={"model": "policy", "messages": messages})
        if answer.status_code not in {429, 503} or time.monotonic() > deadline:
            return answer.raise_for_status()
        await asyncio.sleep(float(answer.headers["retry-after"]))


async def _one_after_the_other(
    client: httpx.AsyncClient,
    trace: Trace,
    processes: Mapping[LoopName, psutil.Process],
    arguments: argparse.Namespace,
) -> None:
    """Sessions of one turn, each lane one after the other; a hundred samples in all."""
    every = max(1, arguments.sequential // 100)
    numbers = iter(range(arguments.sequential))
    ended = 0

    async def lane() -> None:
        nonlocal ended
        for number in numbers:
            await _session(client, f"s{number}", 1)
            ended += 1
            if ended % every == 0:
                trace.take(ended, processes)

    trace.take(0, processes)
    await asyncio.gather(*[lane() for _ in range(arguments.lanes)])


def _draw(trace: Trace, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.0), dpi=150, layout="constrained")
    axes = figure.subplots()
    for name, held in trace.mib.items():
        axes.plot(trace.sessions, held, label=name)
    axes.set_xlabel("sessions, one after the other")
    axes.set_ylabel("resident memory, MiB")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    figure.savefig(path)
