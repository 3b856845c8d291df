"""The whole test: start, load, kill, let everything come back, let it settle, compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.crash import report
from benchmarks.crash.deployment import Deployment, NotThere
from benchmarks.crash.killer import Kill, Killer
from benchmarks.crash.ledger import Ledger
from benchmarks.crash.load import Load
from benchmarks.crash.look import Look
from benchmarks.crash.plan import LOOPS, Target, draw
from benchmarks.crash.verify import Findings, verify
from openclaw_rl.testing.tiny_model import build_tiny_model

MODEL_SEED = 5
"""This random model's opinions of what the clients say are well mixed: a third each is good, bad and neutral."""
POLL_S = 0.2
WARM_UP_S = 60.0
RESUME_S = 180.0
FINISH_S = 120.0
SETTLE_S = 120.0
FRESH_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the test is run. `spread_s`: the longest wait of a kill that comes at any time after its process is up."""

    kills: int = 200
    seed: int = 0
    clients: int = 4
    spread_s: float = 1.5


def crash_test(
    options: Options, directory: Path, progress: Callable[[Kill, int], None] = lambda kill, left: None
) -> dict[str, Any]:
    """Run the test in `directory` (the deployment in `run`, its words in `up.log`); the figures."""
    started = time.monotonic()
    model = build_tiny_model(directory / "model", seed=MODEL_SEED)
    run_dir = directory / "run"
    ledger, look = Ledger(), Look(run_dir)
    with Deployment(run_dir, model) as deployment:
        deployment.wait_ready()
        load = Load(deployment.url, ledger, clients=options.clients, seed=options.seed)
        load.start()
        killer = Killer(
            deployment,
            ledger,
            look,
            draw(options.kills, options.seed, spread_s=options.spread_s),
            seed=options.seed,
            progress=progress,
        )
        problems = _wait("work before the first kill", killer, time.time(), WARM_UP_S)
        try:
            killer.run()
        except NotThere as error:
            problems.append(str(error))
        problems += _wait("work after the last kill", killer, time.time(), RESUME_S)
        if not load.finish(FINISH_S):
            problems.append(f"the clients did not come to an end ({load.failure})")
        problems += _settle(look) + _silent(deployment, look)
        problems += _stop(deployment)
    findings = _compare(ledger, look, problems + deployment.unplanned_ends())
    return report.figures(killer.kills, findings, _about(options, ledger, look, time.monotonic() - started))


def _wait(what: str, killer: Killer, since: float, limit_s: float) -> list[str]:
    """Wait until every loop has worked since a moment; the names of those that have not."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        killer.watch(at_once=True)
        missing = [target for target in LOOPS if not killer.works_since(target, since)]
        if not missing:
            return []
        time.sleep(POLL_S)
    return [f"{what}: {', '.join(missing)} did not within {limit_s:.0f} s"]


def _settle(look: Look) -> list[str]:
    """Wait until nothing is left that could move; what still could."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        if not look.unfinished():
            return []
        time.sleep(POLL_S)
    return [f"after {SETTLE_S:.0f} s of rest: {number} {name}" for name, number in look.unfinished().items()]


def _silent(deployment: Deployment, look: Look) -> list[str]:
    """Loops whose last word is old, or of another process than the one that runs."""
    said, now = look.said(), time.time()
    found = []
    for target in LOOPS:
        word = said.get(target)
        if word is None or now - word.heartbeat_at > FRESH_S:
            found.append(
                f"{target} has been silent for {now - word.heartbeat_at:.0f} s" if word else f"{target}: silent"
            )
        elif word.pid != deployment.pid(target):
            found.append(f"{target}: two processes speak for it")
    return found


def _stop(deployment: Deployment) -> list[str]:
    """Stop as a user does; what remained."""
    code = deployment.stop()
    left = deployment.orphans()
    return ([] if code == 0 else [f"up ended with code {code}"]) + [f"process {pid} was left running" for pid in left]


def _compare(ledger: Ledger, look: Look, problems: list[str]) -> Findings:
    findings = verify(ledger.accepted, look.record())
    integrity = look.integrity()
    damaged = [] if integrity == "ok" else [f"the store is damaged: {integrity}"]
    other = [*findings.other, *problems, *ledger.faults, *damaged]
    return Findings(lost=findings.lost, trained_twice=findings.trained_twice, other=other, ends=findings.ends)


def _about(options: Options, ledger: Ledger, look: Look, seconds: float) -> Mapping[str, Any]:
    record = look.record()
    kept = ("requests_retried", "judge_leases_returned", "samples_returned", "turns_excluded_not_delivered")
    return {
        "seed": options.seed,
        "seconds": round(seconds),
        "accepted_turns": len(ledger.accepted),
        "accepted_and_asked_for_again": sum(entry.asked_again for entry in ledger.accepted),
        "attempts_without_an_answer": dict(ledger.failures.most_common()),
        "steps": len(record.steps),
        "steps_refused_by_the_gate": sum(state == "rejected" for state, _ in record.versions.values()),
        "samples_trained": sum(state == "trained" for state in record.samples.values()),
        "counters": {name: record.counters[name] for name in kept if name in record.counters},
        "cpus": psutil.cpu_count(),
    }


def targets_short_of(kills: Mapping[str, Any], least: int) -> list[Target]:
    """Targets that were killed fewer than `least` times."""
    return [target for target in Target if kills["processes"][target.value]["kills"] < least]
