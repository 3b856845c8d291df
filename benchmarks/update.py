"""Updates under load: what readers of streams notice while a version is trained and published.

For each engine and kind of weights a whole deployment: readers keep streams open and rate answers, the trainer
learns from the ratings until there were so many updates. `mode` `refuse` is what the earlier system did.

It is the recipe `binary_rl` with everything that belongs to its step (reference, gate with its probes and known
answers, checkpoint, publication). Others are: batches of `--batch-size`, due as soon as they are full, and short
answers. Ratings come when the trainer has rested for a little, so that there are gaps `otherwise`. No hint is read,
and no judge asked: the readers' ratings are the scores.
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
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.update_load import DRAIN_S, LoadOptions, figures, observe
from openclaw_rl.config import Config, ModelConfig
from openclaw_rl.config_sources import ConfigError, Setting, from_toml, resolve
from openclaw_rl.evaluation.demo_options import find_recipe
from openclaw_rl.models import available_devices, choose_device
from openclaw_rl.supervision.deployment import Deployment, DeploymentError
from openclaw_rl.supervision.readiness import ready_within_s

logger = logging.getLogger(__name__)

ENGINES = ("embedded", "vllm", "sglang")
KINDS = ("lora", "full")
MODES = ("seamless", "refuse")
SGLANG_ON_CPU = (
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--lora-backend", "torch_native"),
    *("--mem-fraction-static", "0.3", "--max-total-tokens", "8192", "--skip-server-warmup"),
)
"""What SGLang wants to be told where there is no GPU."""
SGLANG_PYTHON_ON_CPU = Path(__file__).resolve().parents[1] / ".venv-sglang-test/bin/python"
"""Where it runs there at all: beside the tests' stand-in for its kernels (`make sglang-test-venv`)."""
AROUND_S = {"embedded": 40.0, "vllm": 100.0, "sglang": 320.0}
"""What a row is expected to take before and after it is measured: kept back, so that no row measures in another's."""
UNKNOWN = (
    "refused", "broken", "updates", "gap_ms_publish", "gap_ms_step", "gap_ms_otherwise", "seconds_to_serve",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One row."""

    engine: str
    kind: str
    mode: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--engine", choices=ENGINES, help="this one alone")
    parser.add_argument("--kind", choices=KINDS, help="this kind of weights alone")
    parser.add_argument("--mode", choices=MODES, help="this way of updating alone")
    parser.add_argument("--updates", type=int, default=20, help="so many in each row")
    parser.add_argument("--streams", type=int, default=8, help="readers at once")
    parser.add_argument("--max-tokens", type=int, default=32, help="of one answer")
    parser.add_argument("--batch-size", type=int, default=2, help="samples of an update")
    parser.add_argument("--niceness", type=int, help="of the trainer; else the default beside that engine")
    parser.add_argument("--limit-s", type=float, default=900.0, help="the longest that a row may be measured")
    parser.add_argument("--budget-s", type=float, default=3300.0, help="what all rows may take together")
    parser.add_argument("--model-path", default=ModelConfig().path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an option of the deployment")
    parser.add_argument("--json", action="store_true", help="a list of objects")


def run(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """All rows that were asked for, one after the other."""
    chosen = cases(arguments.engine, arguments.kind, arguments.mode)
    end = time.monotonic() + arguments.budget_s
    rows = []
    for number, case in enumerate(chosen):
        later = chosen[number + 1 :]
        turn = Turn(end=end - sum(AROUND_S[one.engine] for one in later), rows=1 + len(later))
        rows.append(_row(case, arguments, turn))
    return {"rows": rows}


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A row's place: `rows` are still to be measured until `end` (monotonic), what later starts take taken off.

    A row's share is taken when it is ready: a slow start costs all that are left alike.
    """

    end: float
    rows: int

    def share_s(self, *, now: float, limit_s: float) -> float:
        """How long it may be measured from now; what it leaves is the others'."""
        return min(limit_s, max(0.0, self.end - now) / self.rows)


def as_json(measured: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows, each with when and where it was measured."""
    about = {name: value for name, value in measured.items() if name != "rows"}
    return [{**row, **about} for row in measured["rows"]]


def table(measured: Mapping[str, Any]) -> str:
    """The rows as a table in Markdown."""
    names = ["engine", "kind", "mode", *UNKNOWN]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in measured["rows"]:
        lines.append("| " + " | ".join("" if row[name] is None else str(row[name]) for name in names) + " |")
        if "reason" in row:
            lines.append(f"| | | {row['reason']} |")
    return "\n".join(lines)


def cases(engine: str | None, kind: str | None, mode: str | None) -> list[Case]:
    """The rows: every engine and kind without a seam, and the embedded engine's adapters with one, to compare."""
    every = [Case(engine=e, kind=k, mode="seamless") for e in ENGINES for k in KINDS]
    every.insert(1, Case(engine="embedded", kind="lora", mode="refuse"))
    chosen = [c for c in every if engine in {None, c.engine} and kind in {None, c.kind} and mode in {None, c.mode}]
    if not chosen:  # asked for by name
        chosen = [Case(engine=engine or "embedded", kind=kind or "lora", mode=mode or "seamless")]
    return chosen


def config_of(case: Case, arguments: argparse.Namespace, run_dir: Path) -> Config:
    """The deployment of a row: scores only, which the readers give; small batches, so that there are many updates.

    Raises:
        ConfigError: this build knows no such engine, or no such weights.
    """
    chosen: dict[str, Any] = {
        "run_dir": str(run_dir),
        "model.path": arguments.model_path,
        "serving.port": 0,
        "serving.on_update": case.mode,
        "engine.kind": case.engine,
        "engine.max_parallel": max(arguments.streams, Config().engine.max_parallel),
        "rollout.batch_size": arguments.batch_size,
        "rollout.min_batch_size": 1,
    }
    if case.engine == "sglang" and choose_device(Config().model.device, available_devices()) == "cpu":
        chosen["engine.extra_args"] = list(SGLANG_ON_CPU)
        chosen["engine.sglang.python"] = str(SGLANG_PYTHON_ON_CPU)
    if arguments.niceness is not None:
        chosen["training.niceness"] = arguments.niceness
    if case.kind == "full":
        chosen["training.use_lora"] = False
        chosen["training.lr"] = 1e-5
    settings = [Setting(key=key, value=value, source="benchmark") for key, value in chosen.items()]
    settings += [_setting(text) for text in arguments.set]
    return resolve([*from_toml(find_recipe("binary_rl.toml")), *settings]).config


def _setting(text: str) -> Setting:
    key, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f"--set {text}: it is KEY=VALUE")
    return Setting(key=key, value=value, source="--set")


def _row(case: Case, arguments: argparse.Namespace, turn: Turn) -> dict[str, Any]:
    """The figures of a row, with a `reason` where it is not what was asked for, or there are none."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="openclaw-update-") as directory:
        try:
            config = config_of(case, arguments, Path(directory) / "run")
            found = _measured(config, arguments, turn)
        except (ConfigError, DeploymentError) as error:
            logger.warning("%s: %s", case, error)
            return row_of(case, dict.fromkeys(UNKNOWN), reason=str(error).partition("\n")[0])
        # At the border of a row, whatever it is: the rows that were measured before it must not be lost.
        except Exception as error:
            logger.exception("%s: it came to no end", case)
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            return row_of(case, dict.fromkeys(UNKNOWN), reason=said)
    took = time.monotonic() - begin
    reason = shortfall(found, wanted=arguments.updates, took_s=took)
    return row_of(case, {**found, "ratios": ratios(found), "seconds": round(took, 1)}, reason=reason)


def shortfall(found: Mapping[str, Any], *, wanted: int, took_s: float) -> str | None:
    """In what a row that was measured is not what was asked for; None where it is."""
    updates, watched = found["updates"], found["updates_with_open_stream"]
    amiss = []
    if updates < wanted:
        amiss.append(f"{updates} of {wanted} updates in {took_s:.0f} s")
    if watched < updates:
        amiss.append(f"no stream was open at the publication of {updates - watched} of {updates} updates")
    return "; ".join(amiss) or None


def row_of(case: Case, found: Mapping[str, Any], *, reason: str | None) -> dict[str, Any]:
    """What was found of a case; what is missing is null, and `reason` says why."""
    row = {"engine": case.engine, "kind": case.kind, "mode": case.mode, **found}
    return row if reason is None else {**row, "reason": reason}


def _measured(config: Config, arguments: argparse.Namespace, turn: Turn) -> dict[str, Any]:
    """The figures of one deployment, measured from when it is ready.

    Raises:
        DeploymentError: it was not ready before the time of all rows was over.
    """
    deployment, begin = Deployment(config), time.monotonic()
    try:
        deployment.start()
        deployment.wait_ready(min(ready_within_s(config), max(0.0, turn.end - begin)))
        ready = time.monotonic()
        options = LoadOptions(
            streams=arguments.streams,
            updates=arguments.updates,
            max_tokens=arguments.max_tokens,
            batch_size=config.rollout.batch_size,
            limit_s=max(0.0, turn.share_s(now=ready, limit_s=arguments.limit_s) - DRAIN_S),
        )
        found = figures(asyncio.run(observe(deployment, config, options)))
        return {**found, "start_seconds": round(ready - begin, 1)}
    finally:
        deployment.stop()


def ratios(found: Mapping[str, Any]) -> dict[str, float | None]:
    """The longest gap while publishing, and while stepping, as a multiple of the longest otherwise."""
    otherwise = found["gap_ms_otherwise"]
    gaps: Sequence[tuple[str, float | None]] = [(n, found[f"gap_ms_{n}"]) for n in ("publish", "step")]
    return {n: round(gap / otherwise, 2) if gap is not None and otherwise else None for n, gap in gaps}
