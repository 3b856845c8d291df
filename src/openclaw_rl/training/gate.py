"""Whether a step's new weights may ever serve: asked before the step commits.

A first form: finite, and not absurdly far from the base. It stops what is broken, not what is merely worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from openclaw_rl.config import GateConfig


def verdict(metrics: Mapping[str, float], parameters: Sequence[Tensor], config: GateConfig) -> str | None:
    """Why the step is refused, as a counter's name, or None where it passes.

    `metrics` as the trainer's meter names them; `parameters` the adapter's, after the step.
    """
    if not all(math.isfinite(value) for name, value in metrics.items() if name.startswith("loss")):
        return "loss_not_finite"
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        return "weights_not_finite"
    after = metrics.get("kl_after")
    if after is not None and not after <= config.max_kl_to_base:
        return "kl_to_base"
    return None
