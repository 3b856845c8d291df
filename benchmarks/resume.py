"""Bit-exact resume: a trainer killed by SIGKILL again and again makes what one makes that nobody kills.

One store with a fixed set of samples; the training process works it off once, and once more, from the same store,
killed at random moments of its steps and started again each time. Compared are the files of every checkpoint (with
weights, optimiser, random numbers, counters), the samples and metrics of every step, and what samples and versions
ended as.
The engine is the scripted fake: it takes every version and computes nothing. Everything else is real.
"""

from __future__ import annotations

if __name__ == "__main__":  # run as a file: before the imports below, which want the repository on the path
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.__main__ import main

    sys.exit(main([Path(__file__).stem, *sys.argv[1:]]))

import argparse
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.made_samples import fill, made_samples
from benchmarks.resume_compare import differences, final
from benchmarks.resume_trainer import AIMED, Phase, TrainerProcess
from openclaw_rl.config import Config
from openclaw_rl.config_render import write_private_json
from openclaw_rl.testing.engine_server import engine_server
from openclaw_rl.testing.scripted_engine import ScriptedEngine
from openclaw_rl.testing.tiny_model import build_tiny_model

BATCH = 2
SPARE = 2
"""Steps beyond those that the kills may use up."""
GATES: Mapping[str, Mapping[str, float]] = {
    # A random model has no language that could suffer; the bound on one step's KL refuses some of its steps.
    "tiny": {
        "max_nats_below_told_base": 50.0,
        "max_nats_below_base": 50.0,
        "max_repetition": 1.0,
        "max_probe_drop": 50.0,
        "max_kl_to_last": 0.02,
        "probe_tokens": 8,
    },
    "smollm2": {},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """One kill: what it was meant to hit, what the process was at, and how many steps were committed by then."""

    aimed: Phase
    phase: Phase
    steps: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument(
        "--model", choices=sorted(GATES), default="tiny", help="a random one of two layers, or SmolLM2"
    )
    parser.add_argument("--weights", choices=["lora", "full"], default="lora", help="what learns")
    parser.add_argument("--steps", type=int, help=f"default: as many as kills, and {SPARE}")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="run there and leave everything; DIR must be new")
    parser.add_argument("--json", action="store_true", help="JSON (as all benchmarks) instead of a table")


def run(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Train twice, once in peace, and compare."""
    steps = arguments.steps or arguments.kills + SPARE
    if steps <= arguments.kills:
        raise SystemExit(f"--steps {steps}: each of {arguments.kills} kills wants a step of its own, and one is left")
    directory = arguments.keep or Path(tempfile.mkdtemp(prefix="resume-"))
    directory.mkdir(parents=True, exist_ok=arguments.keep is None)
    directory = directory.resolve()
    with engine_server(ScriptedEngine([])) as url:
        port = int(url.rpartition(":")[2])
        base = prepare(directory, arguments.model, arguments.weights, steps, port)
        peaceful = run_directory(base, directory, "in-peace")
        with TrainerProcess(peaceful) as trainer:
            trainer.start()
            trainer.until_done(steps)
        killed = run_directory(base, directory, "killed")
        deaths = train_and_kill(killed, kills=arguments.kills, steps=steps, seed=arguments.seed)
    amiss = differences(peaceful, killed)
    figures = {
        "model": arguments.model,
        "weights": arguments.weights,
        "seed": arguments.seed,
        "kills": len(deaths),
        "equal": not amiss,
        "phases": dict(Counter(death.phase.value for death in deaths)),
        **final(killed),
        "deaths": [asdict(death) for death in deaths],
        "amiss": amiss[:20],
    }
    if not amiss and arguments.keep is None:
        shutil.rmtree(directory)
    return figures


def prepare(directory: Path, model: str, weights: str, steps: int, port: int) -> Config:
    """The configuration of both runs, and the store that both begin with (`samples.sqlite` in `directory`)."""
    path = str(build_tiny_model(directory / "model")) if model == "tiny" else model
    config = Config.model_validate(
        {
            "run_dir": directory,
            "model": {"path": path, "device": "cpu"},
            "engine": {"kind": "scripted", "port": port, "script": directory / "script.json"},
            "rollout": {"batch_size": BATCH},
            "judge": {"hint_selection": "overlap"},
            "training": {
                # All that has a memory: momentum, dropout, averages of rewards and of weights, warm-up and decay.
                "teacher": {"kind": "live" if weights == "full" else "average"},
                "lr": 1e-5 if weights == "full" else 1e-3,
                "schedule": "linear",
                "warmup_steps": 2,
                "schedule_steps": steps + 2,
                "epochs_per_batch": 2,
                "max_staleness": steps + 1,
                "keep_checkpoints": steps + 1,
                "niceness": 0,
                "threads": 1,
                "gate": GATES[model],
                **({"use_lora": False} if weights == "full" else {"lora": {"rank": 4, "alpha": 8.0, "dropout": 0.1}}),
            },
        }
    )
    fill(directory / "samples.sqlite", made_samples(config, steps * BATCH))
    return config


def run_directory(base: Config, directory: Path, name: str) -> Path:
    """A run directory with a copy of the store, ready for the training process."""
    run_dir = directory / name
    run_dir.mkdir()
    shutil.copy(directory / "samples.sqlite", run_dir / "store.sqlite")
    write_private_json(base.model_copy(update={"run_dir": run_dir}), run_dir / "config.json")
    return run_dir


def train_and_kill(run_dir: Path, *, kills: int, steps: int, seed: int) -> Sequence[Death]:
    """Work the store off, killed `kills` times; each kill leaves enough steps for those after it."""
    chance = random.Random(f"resume/{seed}")
    aims: list[Phase] = []
    while len(aims) < kills:
        aims += chance.sample(AIMED, len(AIMED))
    deaths = []
    with TrainerProcess(run_dir) as trainer:
        for number, aim in enumerate(aims[:kills]):
            trainer.start()
            phase, committed = trainer.kill_at(aim, chance, last=steps - (kills - number) + 1)
            deaths.append(Death(aimed=aim, phase=phase, steps=committed))
        trainer.start()
        trainer.until_done(steps)
    return deaths


def table(figures: Mapping[str, Any]) -> str:
    """The phases hit as Markdown, and the verdict in the last line."""
    lines = ["| killed while | times |", "|---|---|"]
    lines += [f"| {phase} | {times} |" for phase, times in sorted(figures["phases"].items())]
    lines += ["", *(f"AMISS: {line}" for line in figures["amiss"])]
    lines.append(
        f"kills={figures['kills']} equal={str(figures['equal']).lower()} steps={figures['steps']} "
        f"refused_by_gate={figures['refused_by_gate']} model={figures['model']} weights={figures['weights']}"
    )
    return "\n".join(lines)
