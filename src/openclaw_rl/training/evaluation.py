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
from openclaw_rl.extensions import load_function, one_process
from openclaw_rl.training.gate import Readings, verdict
from openclaw_rl.training.own_code import refusal
from openclaw_rl.training.trainer import StepOutcome


class EvaluationFailed(Exception):
    """It gave no number; the message is the reason, as a counter's name."""


Evaluation = Callable[[Path], float]
"""A version's directory (PEFT, loadable over the base; without LoRA a whole model) to a number: higher is better."""

OPTION = "training.gate.evaluation_path"
TRIES = 3
"""So often a version is evaluated where the evaluation raises."""


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


def evaluated(
    outcome: StepOutcome,
    evaluate: Evaluation,
    version: Path,
    config: GateConfig,
    pause: Callable[[], None] = lambda: None,
) -> StepOutcome:
    """The outcome with what the evaluation gave, refused where that is too little.

    An evaluation that raises is asked again, `TRIES` times in all, because what it needs may be away for a moment;
    `pause` waits between them. Then the version is refused, by the name of what was raised: one that could not be
    evaluated must not serve, and the trainer goes on. Random numbers that it draws are not the trainer's: the
    checkpoint was written before it, and a trainer that goes on is where one would be that began from there.
    """
    for tried in range(1, TRIES + 1):
        try:
            value = _asked(evaluate, version)
            break
        except EvaluationFailed as error:
            if tried == TRIES:
                return dataclasses.replace(outcome, refused=str(error))
            pause()
    readings = Readings(loss=None, weights_finite=True, evaluation=value)
    return dataclasses.replace(
        outcome,
        refused=verdict(readings, config),
        metrics={**outcome.metrics, **readings.metrics()},
    )


def _asked(evaluate: Evaluation, version: Path) -> float:
    try:
        with torch.random.fork_rng(devices=[]), one_process():
            return float(evaluate(version))
    except BaseException as error:  # whatever the user's own code raises
        raise EvaluationFailed(refusal("evaluation", OPTION, error)) from error
