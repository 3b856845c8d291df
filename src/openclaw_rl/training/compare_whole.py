"""How far two versions lie apart that are whole models: what each adds to the base, parameter by parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import load_causal_lm
from openclaw_rl.policy_files import verify_manifest
from openclaw_rl.training.compare import Difference
from openclaw_rl.training.learned import MODEL_FILE

Read = Callable[[str], Tensor]


def compare_whole(base: Path, a: Path | None, b: Path | None) -> Difference:
    """Compare two Transformers directories of versions over the one of their `base`; None is the base itself.

    A parameter of each is in memory at a time, beside the base.

    Raises:
        ConfigError: a version is not of this base.
        CorruptPolicy: one is not what was written.
    """
    own = dict(load_causal_lm(base).named_parameters())
    squares_a, squares_b, by_module = 0.0, 0.0, {}
    with _opened(own, a) as read_a, _opened(own, b) as read_b:
        for name, weight in own.items():
            first, second = read_a(name), read_b(name)
            squares_a += _square(first - weight)
            squares_b += _square(second - weight)
            by_module[name.removesuffix(".weight")] = math.sqrt(_square(first - second))
    return Difference(
        norm_a=math.sqrt(squares_a),
        norm_b=math.sqrt(squares_b),
        norm_difference=math.sqrt(sum(norm**2 for norm in by_module.values())),
        by_module=dict(sorted(by_module.items(), key=lambda item: -item[1])),
    )


@contextmanager
def _opened(base: dict[str, Tensor], version: Path | None) -> Iterator[Read]:
    """What reads a parameter of a version by its name."""
    if version is None:
        yield base.__getitem__
        return
    verify_manifest(version)
    with safe_open(version / MODEL_FILE, framework="pt") as file:
        shapes = {name: list(weight.shape) for name, weight in base.items()}
        if {name: file.get_slice(name).get_shape() for name in file.keys()} != shapes:  # noqa: SIM118 - no mapping
            raise ConfigError(f"{version} is not of the configured model.path")
        yield file.get_tensor


def _square(difference: Tensor) -> float:
    with torch.no_grad():
        return float(difference.double().square().sum())
