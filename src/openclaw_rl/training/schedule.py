"""The learning rate of a step, as a share of `training.lr`: warm-up, then what the schedule says.

A pure function of how many steps were committed before, so that a trainer that resumes takes the very rate that it
would have taken. Refused steps are counted too: their numbers are spent.
"""

from __future__ import annotations

import math

from openclaw_rl.config import TrainingConfig


def lr_share(committed: int, config: TrainingConfig) -> float:
    """What `training.lr` is multiplied with in the step after `committed` steps; above 0, at most 1.

    The `warmup_steps` first steps rise in equal parts, `1/(w+1), 2/(w+1), ..., w/(w+1)`; the one after them has the
    whole. From there a linear or a cosine schedule falls, to `min_lr_share` once `schedule_steps` are committed,
    where it stays: a deployment has no last step.
    """
    if committed < config.warmup_steps:
        return (committed + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant" or config.schedule_steps is None:
        return 1.0
    gone = min(1.0, (committed - config.warmup_steps) / (config.schedule_steps - config.warmup_steps))
    left = 1.0 - gone if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * gone))
    return config.min_lr_share + (1.0 - config.min_lr_share) * left
