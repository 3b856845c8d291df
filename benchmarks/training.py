"""One training step: time and peak memory, against TRL's GRPO loss and against bare Transformers.

Three cases: (a) `equal`, 16 single turns of 128 + 128 tokens; (b) `mixed`, 16 single turns of mixed lengths; (c)
`sessions`, one session of 10 turns whose first prompt is 1,000 tokens and which grows by 60 + 60 a turn. From the
samples to the optimiser's step, in fp32; KL and teacher off; checkpoint and gate not counted. Sides take turns, each
in a process of its own, and the median of the rounds counts; a first round warms up and chooses TRL's best
micro-batch. The limit reads each token that must be read once, densely, and has the head at response positions only.
TRL must be installed (`pip install trl==1.16.0`); without it, its figures are absent.
"""

from __future__ import annotations

if __name__ == "__main__":  # run as a file: before the imports below, which want the repository on the path
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.__main__ import main

    sys.exit(main([Path(__file__).stem, *sys.argv[1:]]))

import argparse
import dataclasses
import importlib.util
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor

from benchmarks.training_cases import NAMES, Case, samples_of, with_old
from benchmarks.training_sides import Task
from benchmarks.training_worker import Measured, SideProcess, old_logprobs_apart
from openclaw_rl.config import ModelConfig
from openclaw_rl.models import load_tokenizer, resolve_model

TRL_CHOICES: dict[Case, tuple[tuple[str, ...], ...]] = {
    Case.EQUAL: (("trl_1", "trl_2"),),
    Case.MIXED: (("trl_1", "trl_2"),),
    Case.SESSION: (("trl_one_row",), ("trl_1",)),
}
"""Of each group the fastest counts. A session's separate rows are so long that only one at a time is tried."""

COLD = "ours_first"
"""Our first step, beside separate rows of a session, of which TRL's first is the only one."""

Figures = dict[str, list[Measured]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--model-path", default=ModelConfig().path)
    parser.add_argument("--case", choices=[case.value for case in Case], help="one case alone")
    parser.add_argument("--weights", choices=["lora", "full", "both"], default="both", help="what learns")
    parser.add_argument("--rounds", type=int, default=2, help="how often, after the first round; LoRA only")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of every side")
    parser.add_argument("--quick", action="store_true", help="a quarter of the samples: a trial, no result")
    parser.add_argument("--no-gradient", action="store_true", help="do not compare it with training/reference.py")
    parser.add_argument("--no-trl", action="store_true", help="leave TRL out")
    parser.add_argument("--json", action="store_true", help="JSON (as all benchmarks) instead of a table")


def run(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Measure all cases asked for, one after the other."""
    cases = [Case(arguments.case)] if arguments.case else list(Case)
    trl = not arguments.no_trl and importlib.util.find_spec("trl") is not None
    result: dict[str, Any] = {"threads": arguments.threads, "quick": arguments.quick, "trl": _trl_version(trl)}
    details: dict[str, dict[str, Any]] = {}
    compared: list[tuple[Case, Task, Tensor]] = []
    for case in cases:
        task = _task(case, arguments)
        if arguments.weights != "full":
            figures, gradient = measure(case, task, arguments, trl=trl, rounds=arguments.rounds)
            result |= ratios(case, figures)
            details.setdefault("lora", {})[NAMES[case]] = summary(figures)
            if not arguments.no_gradient:
                compared.append((case, task, gradient))
        if arguments.weights != "lora":
            full = dataclasses.replace(task, full=True)
            figures, _ = measure(case, full, arguments, trl=trl, rounds=0)
            details.setdefault("full", {})[NAMES[case]] = summary(figures)
    if compared:
        result |= worst_difference(compared, arguments.threads)
    return result | details


def worst_difference(compared: Sequence[tuple[Case, Task, Tensor]], threads: int) -> dict[str, Any]:
    """The greatest difference of all cases, once all times are known: the plain loop is slow and may run out of time.

    Where it does, or out of memory, the difference is None and `gradient_missing` says why.
    """
    worst = 0.0
    for case, task, gradient in compared:
        try:
            worst = max(worst, gradient_difference(gradient, task, threads))
        except (TimeoutError, EOFError) as error:
            why = str(error) or "its process died"
            return {"gradient_difference": None, "gradient_missing": f"{NAMES[case]}: {why}"}
    return {"gradient_difference": float(f"{worst:.2e}")}


def measure(
    case: Case, task: Task, arguments: argparse.Namespace, *, trl: bool, rounds: int
) -> tuple[Figures, Tensor]:
    """The steps of every side, and the gradient of the trainer's first. With no more rounds, the first counts.

    A session in separate rows costs TRL a minute or two: it is measured in the first round only, and set against our
    own first step (`COLD`), which like it has warmed nothing up.
    """
    groups = TRL_CHOICES[case] if trl else ()
    sides = ["ours", "limit", *(name for group in groups for name in group)]
    figures: Figures = {}
    with ExitStack() as stack:
        processes: dict[str, SideProcess] = {}
        for name in sides:
            processes[name] = SideProcess(name, task, arguments.threads)
            stack.callback(processes[name].close)
        first = {name: process.step() for name, process in processes.items()}
        gradient = processes["ours"].gradient()
        chosen = [min(group, key=lambda name: first[name].seconds) for group in groups]
        again = {"ours", "limit", *chosen} - ({"trl_1"} if case is Case.SESSION else set())
        for name in processes.keys() - again:
            processes.pop(name).close()
        for _ in range(rounds):
            for name, process in processes.items():
                figures.setdefault(name, []).append(process.step())
    for name in ("ours", "limit", *chosen):
        figures.setdefault(name, [first[name]])
    if rounds and case is Case.SESSION and "trl_1" in figures:
        figures[COLD] = [first["ours"]]
    return figures, gradient


def ratios(case: Case, figures: Figures) -> dict[str, float]:
    """How many times as fast as the others this project's trainer is, under the names that results are kept by."""
    seconds = {name: _seconds(steps) for name, steps in figures.items()}
    name, ours = NAMES[case], seconds["ours"]
    found = {f"{name}_vs_limit": seconds["limit"] / ours}
    if case is Case.SESSION and "trl_1" in seconds:
        found[f"{name}_vs_trl_rows"] = seconds["trl_1"] / seconds.get(COLD, ours)
        found[f"{name}_vs_trl_one_row"] = seconds["trl_one_row"] / ours
    elif case is not Case.SESSION:
        found |= {f"{name}_vs_trl": value / ours for side, value in seconds.items() if side.startswith("trl")}
    return {key: round(value, 3) for key, value in found.items()}


def summary(figures: Figures) -> dict[str, dict[str, float]]:
    """Median seconds and peak memory of each side, and how many steps they are of."""
    return {
        name: {
            "seconds": round(_seconds(steps), 2),
            "steps": len(steps),
            "peak_mib": round(max(step.peak_mib for step in steps)),
        }
        for name, steps in figures.items()
    }


def gradient_difference(gradient: Tensor, task: Task, threads: int) -> float:
    """Relative L2 of the difference between the trainer's gradient and that of `training.reference`."""
    process = SideProcess("plain", task, threads)
    try:
        process.step()
        plain = process.gradient().double()
    finally:
        process.close()
    return float((gradient.double() - plain).norm() / plain.norm())


def table(result: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    lines = ["| weights | case | side | s | peak MiB | times as fast as it |", "|---|---|---|---|---|---|"]
    for weights in ("lora", "full"):
        for case, sides in result.get(weights, {}).items():
            ours = sides["ours"]["seconds"]
            cold = sides.get(COLD, sides["ours"])["seconds"]
            for name, side in sides.items():
                seconds, memory = side["seconds"], side["peak_mib"]
                beside = cold if name == COLD or (name == "trl_1" and COLD in sides) else ours
                lines.append(f"| {weights} | {case} | {name} | {seconds} | {memory} | {seconds / beside:.2f} |")
    if result.get("gradient_difference") is not None:
        lines += ["", f"gradient: {result['gradient_difference']:.1e} from training/reference.py"]
    elif "gradient_missing" in result:
        lines += ["", f"gradient: not compared ({result['gradient_missing']})"]
    return "\n".join(lines)


def _task(case: Case, arguments: argparse.Namespace) -> Task:
    vocabulary = len(load_tokenizer(resolve_model(ModelConfig(path=arguments.model_path))))
    samples = samples_of(case, vocabulary, quick=arguments.quick)
    task = Task(samples=tuple(samples), model_path=arguments.model_path, full=False)
    old = old_logprobs_apart(task, arguments.threads)
    return dataclasses.replace(
        task, samples=tuple(with_old(sample, logprobs) for sample, logprobs in zip(samples, old, strict=True))
    )


def _seconds(steps: Sequence[Measured]) -> float:
    return statistics.median(step.seconds for step in steps)


def _trl_version(there: bool) -> str | None:
    if not there:
        return None
    from benchmarks.training_trl import version

    return version()
