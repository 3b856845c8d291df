"""`openclaw-rl plot`: the learning curves of a deployment, whether or not it is up."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openclaw_rl.cli_policy import AddCommand, opened_store
from openclaw_rl.config_sources import ConfigError

OK = 0


def add_plot(commands: Any, command: AddCommand, add_run_dir: Callable[[argparse.ArgumentParser], None]) -> None:
    """The command `plot`."""
    parser = command(commands, "plot", run_plot, "draw the learning curves of a deployment")
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="by default learning.png in the run directory")
    add_run_dir(parser)


def run_plot(parsed: argparse.Namespace) -> int:
    """`plot`."""
    from openclaw_rl.evaluation.training_curves import points_of, save_curves

    with opened_store(parsed) as (store, config):
        points = points_of(store.samples.steps(), store.versions.all())
    if not points:
        raise ConfigError(f"no step was taken in {config.run_dir} yet: there is nothing to draw")
    out = parsed.out or config.run_dir / "learning.png"
    title = f"{config.run_dir.resolve().name}: {len(points)} steps"
    try:
        save_curves(points, title, out)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror or error}") from error
    refused = sum(point.refused is not None for point in points)
    print(f"{len(points)} steps ({refused} refused) are drawn in {out}")  # noqa: T201
    return OK
