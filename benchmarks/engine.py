"""Tokens per second, engine against engine without HTTP: the embedded one, `generate` in one static batch, vLLM.

Requests come apart to the engines and all at once to `generate`; reading the prompts is within the time. The sides
take turns, so that what else the machine does meets all of them; a figure is the median of the rounds.
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
import dataclasses
import itertools
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine_sides import Embedded, Side, Static, Task, prompts_of, write_adapter
from benchmarks.engine_vllm import NotHere, Vllm
from openclaw_rl.config import Config, ModelConfig
from openclaw_rl.models import resolve_model
from openclaw_rl.serving.engines.embedded.scheduler import budget
from openclaw_rl.serving.engines.embedded.server import threads_of

STREAMS = 4
SIDES = ("embedded", "static", "static_merged", "vllm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--model-path", default=ModelConfig().path)
    parser.add_argument("--parallel", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--apart-ms", type=float, default=20.0, help="how long after each other requests arrive")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of each side; 0: as the engine takes")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--long-prompt", type=int, default=0, help="also: what so long a prompt does to four streams")
    parser.add_argument("--json", action="store_true", help="all figures")


def run(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Measure every side at every number of requests."""
    model = resolve_model(ModelConfig(path=arguments.model_path))
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        adapter = Path(directory) / "adapter"
        write_adapter(model, adapter)
        task = Task(
            model=model,
            adapter=adapter,
            dtype=arguments.dtype,
            threads=arguments.threads or threads_of(Config()),
            prompt_tokens=arguments.prompt_tokens,
            new_tokens=arguments.new_tokens,
            apart_s=arguments.apart_ms / 1000,
        )
        figures: dict[str, Any] = dict.fromkeys(SIDES)
        sides: dict[str, Side] = {}
        for name in arguments.sides:
            try:
                sides[name] = _side(name, task, max(arguments.parallel), Path(directory))
            except NotHere as error:
                figures["why_not"] = {**figures.get("why_not", {}), name: str(error)}
                continue
            stack.callback(sides[name].close)
        measured, gone = _measure(sides, task, arguments.parallel, arguments.rounds)
        figures.update(measured)
        if gone:
            figures["why_not"] = {**figures.get("why_not", {}), **gone}
        if arguments.long_prompt:
            figures["long_prompt"] = long_prompt(task, arguments.long_prompt)
    return {
        **figures,
        "ratio": ratio(figures),
        "dtype": dict.fromkeys(sides, task.dtype),
        "threads": task.threads,
        "prompt_tokens": task.prompt_tokens,
        "new_tokens": task.new_tokens,
    }


def _side(name: str, task: Task, parallel: int, directory: Path) -> Side:
    if name == "embedded":
        return Embedded(task, parallel=parallel)
    if name == "vllm":
        return Vllm(task, parallel=parallel, directory=directory)
    return Static(task, merged=name == "static_merged")


def _measure(
    sides: Mapping[str, Side], task: Task, parallel: Sequence[int], rounds: int
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Median tokens per second by side and number, and why a side has none from some number on.

    A first, short round warms up and is left out.
    """
    gone: dict[str, str] = {}

    def ask(name: str, prompts: Sequence[Sequence[int]]) -> list[float]:
        try:
            return [] if name in gone else [sides[name].generate(prompts).tokens_per_s]
        except NotHere as error:
            gone[name] = str(error)
            return []

    for name in sides:
        ask(name, prompts_of(task.model, 1, task.prompt_tokens, seed=0))
    figures: dict[str, dict[str, float]] = {name: {} for name in sides}
    for number in parallel:
        measured: dict[str, list[float]] = {name: [] for name in sides}
        for place in range(rounds):
            prompts = prompts_of(task.model, number, task.prompt_tokens, seed=100 * number + place)
            for name in sides:
                measured[name] += ask(name, prompts)
        for name, values in measured.items():
            if name not in gone:
                figures[name][str(number)] = round(statistics.median(values), 2)
    return figures, gone


def long_prompt(task: Task, tokens: int) -> dict[str, float]:
    """What a prompt of so many tokens does to streams: their longest gap beside it, in usual gaps too."""
    streams = prompts_of(task.model, STREAMS, task.prompt_tokens, seed=1)
    (prompt,) = prompts_of(task.model, 1, tokens, seed=2)
    rounds = tokens // budget(Config().engine.prefill_chunk_tokens, STREAMS) + 2
    side = Embedded(dataclasses.replace(task, new_tokens=rounds), parallel=STREAMS + 1)
    try:
        alone, beside = side.generate(streams), side.generate([*streams, prompt])
    finally:
        side.close()
    usual = statistics.median(_gaps(alone.times))
    longest = max(_gaps(beside.times[:STREAMS]))
    return {
        "tokens": tokens,
        "usual_gap_ms": round(1000 * usual, 1),
        "longest_gap_ms_alone": round(1000 * max(_gaps(alone.times)), 1),
        "longest_gap_ms": round(1000 * longest, 1),
        "in_tokens_time": round(longest / usual, 2),
    }


def _gaps(times: Sequence[Sequence[float]]) -> list[float]:
    return [after - before for stream in times for before, after in itertools.pairwise(stream)]


def ratio(figures: Mapping[str, Any]) -> dict[str, float] | None:
    """The embedded engine's tokens per second as a share of the static batch's; the goal is at least 0.9."""
    ours, static = figures["embedded"], figures["static"]
    if ours is None or static is None:
        return None
    return {number: round(ours[number] / static[number], 3) for number in ours}


def table(figures: Mapping[str, Any]) -> str:
    """Tokens per second, a row for each side."""
    measured = {name: figures[name] for name in SIDES if figures[name] is not None}
    numbers = list(next(iter(measured.values()))) if measured else []
    lines = [f"| tokens/s | {' | '.join(numbers)} | dtype |", "|" + "---|" * (len(numbers) + 2)]
    for name, values in measured.items():
        lines.append(f"| {name} | {' | '.join(str(values.get(n, '')) for n in numbers)} | {figures['dtype'][name]} |")
    lines += [f"{name}: {why}" for name, why in figures.get("why_not", {}).items()]
    return "\n".join(lines)
