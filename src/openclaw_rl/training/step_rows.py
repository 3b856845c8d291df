"""What the record keeps of a step: its row, and that of the version that it made."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.policy_files import weights_of
from openclaw_rl.training.trainer import StepOutcome
from openclaw_rl.types import PolicyVersion, Sample, StepRecord, VersionState


def rows_of(
    samples: Sequence[Sample], outcome: StepOutcome, checkpoint: Path, owner: str
) -> tuple[StepRecord, PolicyVersion]:
    """The two rows of a step, to be committed together."""
    now = time.time()
    record = StepRecord(
        step=outcome.step,
        version=outcome.step,
        sample_ids=tuple(sample.turn_id for sample in samples),
        metrics={name: value for name, value in outcome.metrics.items() if math.isfinite(value)},
        checkpoint=str(checkpoint),
        seconds=outcome.seconds,
        teacher=outcome.teacher,
        owner=owner,
        created_at=now,
    )
    version = PolicyVersion(
        version=outcome.step,
        state=VersionState.CANDIDATE if outcome.refused is None else VersionState.REJECTED,
        path=str(weights_of(checkpoint).directory),
        step=outcome.step,
        created_at=now,
        reason=outcome.refused,
        owner=owner,
    )
    return record, version
