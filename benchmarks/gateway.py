"""What the gateway costs: requests a second and the time to the first token, against the engine asked directly.

Beside it, before the same engine and under the same load: a minimal streaming pass-through (Starlette and httpx), and
LiteLLM's proxy. Ours records every turn. 8 clients, a system prompt of 8,000 characters, histories that grow to 40
messages. Whole answers, back to back, give requests a second; streamed ones, at a fifth of what the slowest can do,
the time to the first token, of which what the engine needs by itself is taken off. Rounds go round the contenders,
so that a slow moment of the machine is not one contender's; the figure of several rounds is their median.
"""

from __future__ import annotations

if __name__ == "__main__":  # run as a file: before the imports below, which want the repository on the path
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.__main__ import main

    sys.exit(main([Path(__file__).stem, *sys.argv[1:]]))

import argparse
import contextlib
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks import gateway_processes as processes
from benchmarks.gateway_load import ANSWER_TIMEOUT_S, Plan
from benchmarks.gateway_processes import Contender

SHARE_OF_SLOWEST = 0.2
TOKEN_PAUSE_S = 0.002
KEY = f"sk-{secrets.token_hex(16)}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--json", action="store_true", help="print the figures as JSON (they always are)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round of each contender")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds before the first round, not counted")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--system-characters", type=int, default=8000)
    parser.add_argument("--messages", type=int, default=40, help="at which a conversation ends and a new one begins")
    parser.add_argument("--question-characters", type=int, default=200)
    parser.add_argument("--no-litellm", action="store_true", help="leave LiteLLM out; its figure is null")


def run(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Start everything, measure, end it."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        engine = processes.engine()
        stack.enter_context(processes.running(engine, directory))
        contenders = [
            processes.passthrough(engine.port),
            *_litellm(engine.port, directory, KEY, leave_out=arguments.no_litellm),
            processes.gateway(engine.port, directory),
        ]
        pids = {one.name: stack.enter_context(processes.running(one, directory)).pid for one in contenders}
        return _measure([engine, *contenders], pids, arguments)


def _litellm(engine_port: int, directory: Path, key: str, *, leave_out: bool) -> list[Contender]:
    """LiteLLM's proxy, or none where it cannot be had: then the others are measured all the same."""
    if leave_out:
        return []
    try:
        return [processes.litellm(engine_port, directory, key)]
    except processes.NotInstalled as error:
        print(f"LiteLLM cannot be installed, so its figure is null: {error}", file=sys.stderr)
        return []


def _measure(
    contenders: Sequence[Contender], pids: Mapping[str, int], arguments: argparse.Namespace
) -> Mapping[str, Any]:
    engine = contenders[0]
    for contender in contenders:
        if arguments.warm_up > 0:
            _clients(_plan(contender, arguments, seconds=arguments.warm_up))
    rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    cpu: dict[str, list[float]] = {name: [] for name in pids}
    for _ in range(arguments.rounds):
        for contender in contenders:
            before = _cpu_s(pids.get(contender.name))
            seen = _clients(_plan(contender, arguments))
            rates[contender.name].append(seen["answers"] / seen["seconds"])
            if contender.name in pids:
                cpu[contender.name].append((_cpu_s(pids[contender.name]) - before) / seen["answers"])
    per_second = {name: statistics.median(values) for name, values in rates.items()}
    rate = SHARE_OF_SLOWEST * min(per_second.values())
    processes.ask(engine.port, "POST", "/pace", {"seconds": TOKEN_PAUSE_S})
    first: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for _ in range(arguments.rounds):
        for contender in contenders:
            first[contender.name] += _clients(_plan(contender, arguments, rate=rate))["first_token_s"]
    return {
        **_figures(per_second, first),
        "stream_rate_per_s": round(rate, 1),
        "cpu_ms_per_request": {name: round(1000 * statistics.median(values), 2) for name, values in cpu.items()},
        "rounds": {name: [round(value) for value in values] for name, values in rates.items()},
        "litellm_version": processes.litellm_version() if "litellm" in per_second else None,
    }


def _figures(per_second: Mapping[str, float], first: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The figures by their names; null for what was not measured."""

    def rate_of(name: str) -> float | None:
        return round(per_second[name], 1) if name in per_second else None

    def added_ms(name: str, percent: int) -> float | None:
        if name not in first:
            return None
        return round(1000 * (percentile(first[name], percent) - percentile(first["bare"], percent)), 2)

    return {
        "requests_per_s": rate_of("gateway"),
        "bare_requests_per_s": rate_of("bare"),
        "passthrough_requests_per_s": rate_of("passthrough"),
        "litellm_requests_per_s": rate_of("litellm"),
        "added_ttft_ms_p50": added_ms("gateway", 50),
        "added_ttft_ms_p99": added_ms("gateway", 99),
        "passthrough_added_ttft_ms_p50": added_ms("passthrough", 50),
        "passthrough_added_ttft_ms_p99": added_ms("passthrough", 99),
        "litellm_added_ttft_ms_p50": added_ms("litellm", 50),
        "bare_ttft_ms_p50": round(1000 * percentile(first["bare"], 50), 2),
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that at least `percent` of a hundred values do not exceed (the nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def _cpu_s(pid: int | None) -> float:
    if pid is None:
        return 0.0
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _plan(
    contender: Contender, arguments: argparse.Namespace, *, seconds: float | None = None, rate: float | None = None
) -> Plan:
    return Plan(
        port=contender.port,
        key=KEY,
        seconds=arguments.seconds if seconds is None else seconds,
        clients=arguments.clients,
        system_characters=arguments.system_characters,
        messages=arguments.messages,
        question_characters=arguments.question_characters,
        rate=rate,
    )


def _clients(plan: Plan) -> dict[str, Any]:
    """Run the clients; what they saw."""
    command = [sys.executable, "-m", "benchmarks.gateway_load", json.dumps(asdict(plan))]
    limit = plan.seconds + 2 * ANSWER_TIMEOUT_S
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, timeout=limit, cwd=processes.LITELLM_VENV.parent
    )
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen
