"""What a step's metrics say of the batch itself, before anything was learned from it."""

from __future__ import annotations

import torch

from openclaw_rl.training.batch import TrainBatch
from openclaw_rl.training.line import Line


def batch_metrics(batch: TrainBatch, version: int, line: Line) -> dict[str, float]:
    """Sizes, shares and ages, these counted along the `line` of `version`, whose weights the step began with."""
    acting = batch.weights > 0
    rewards = batch.present_rewards
    effective = int(torch.unique(batch.owner[acting]).numel())
    drawn_by = [sample.version for sample in batch.samples if sample.version is not None]
    ages = [line.age(drawn, version) for drawn in drawn_by]
    metrics = {
        "samples": float(len(batch.samples)),
        "effective_samples": float(effective),
        "effective_tokens": float(acting.sum()),
        "opd_share": len(batch.hinted) / max(effective, 1),
        "retries": float(len(batch.demos)),
        "staleness_mean": sum(ages) / max(len(ages), 1),
        "staleness_max": float(max(ages, default=0)),
    }
    if rewards.numel():
        metrics["mean_reward"] = float(rewards.mean())
    return metrics
