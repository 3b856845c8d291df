"""The user's own evaluation of a new version, where one is configured: the last word of the gate."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch

from openclaw_rl.config_gate import GateConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.extensions import load_function
from openclaw_rl.training.gate import Readings, verdict
from openclaw_rl.training.trainer import StepOutcome

Evaluation = Callable[[Path], float]
"""A version's directory (PEFT, loadable over the base; without LoRA a whole model) to a number: higher is better."""

OPTION = "training.gate.evaluation_path"


def load_evaluation(config: GateConfig) -> Evaluation | None:
    """The configured evaluation, loaded and looked at when the trainer starts; None without one.

    Raises:
        ConfigError: it is not there, its file raises, or it cannot be called with a version's directory alone.
    """
    path = config.evaluation_path
    if path is None:
        return None
    found = load_function(path, option=OPTION, parameters=("version",))
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found):
        raise ConfigError(f"{OPTION} = {path!r} must be a plain function that returns a number")
    return cast(Evaluation, found)


def evaluated(outcome: StepOutcome, evaluate: Evaluation, version: Path, config: GateConfig) -> StepOutcome:
    """The outcome with what the evaluation gave, refused where that is too little.

    An evaluation that raises ends the trainer's process, which starts again and makes the step anew: a version that
    could not be evaluated must not serve, and is no worse for it. Random numbers that it draws are not the trainer's:
    the checkpoint was written before it, and a trainer that goes on is where one would be that began from there.
    """
    with torch.random.fork_rng(devices=[]):
        value = float(evaluate(version))
    readings = Readings(loss=None, weights_finite=True, evaluation=value)
    return dataclasses.replace(
        outcome,
        refused=verdict(readings, config),
        metrics={**outcome.metrics, **readings.metrics()},
    )
