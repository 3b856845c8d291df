"""Going on where the last checkpoint is damaged: from the newest one that is whole.

A failing disk, or a hand that went astray: a trainer that ended with an error would be started again for ever, and an
engine that is started again could not load the version in service.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import CorruptPolicy
from openclaw_rl.store import Store
from openclaw_rl.training.checkpoint import load_checkpoint
from openclaw_rl.training.trainer import TrainerState
from openclaw_rl.types import BASE_VERSION, StepRecord, VersionState

log = logging.getLogger(__name__)

DAMAGED = "checkpoints_damaged"
"""The counter of versions that were given up for the damage of their checkpoints."""

REASON = "damaged"
"""Why a candidate never serves whose checkpoint is."""


class NoIntactCheckpoint(ConfigError):
    """Steps were committed, and none of their checkpoints can be read. To begin anew is for a person to decide."""


@dataclass(frozen=True, kw_only=True)
class Intact:
    """The newest whole checkpoint: its version, its state (None: nothing was trained yet), and what is newer.

    `checkpoint` is its directory, None without a state. `damaged` are the versions of newer checkpoints, which are
    not what was written, with the reason.
    """

    version: int
    state: TrainerState | None
    checkpoint: Path | None
    damaged: Sequence[tuple[int, str]]


def newest_intact(steps: Sequence[StepRecord]) -> Intact:
    """Look for a whole checkpoint among those of committed steps, from the last one back.

    Raises:
        NoIntactCheckpoint: if there are steps, and none has one.
    """
    damaged: list[tuple[int, str]] = []
    for step in reversed(steps):
        try:
            state = load_checkpoint(Path(step.checkpoint))
        except CorruptPolicy as error:
            damaged.append((step.version, str(error)))
        else:
            return Intact(version=step.version, state=state, checkpoint=Path(step.checkpoint), damaged=damaged)
    if damaged:
        raise NoIntactCheckpoint(
            f"none of the {len(damaged)} checkpoints of this run can be read (the last: {damaged[0][1]}): put "
            "checkpoints/ back as it was, or begin anew with another --run-dir"
        )
    return Intact(version=BASE_VERSION, state=None, checkpoint=None, damaged=())


def fall_back(store: Store, intact: Intact, owner: str = "") -> None:
    """Take an owner's versions with damaged checkpoints out of service, for the newest whole one.

    Training goes on from that one, and must be fed by its answers. The samples of what is given up stay trained: they
    are never used again.
    """
    states = {version.version: version.state for version in store.versions.of(owner)}
    for version, reason in intact.damaged:
        log.error("the checkpoint of policy-v%d is damaged: %s", version, reason)
        if states[version] is VersionState.CANDIDATE:
            store.versions.reject(version, REASON)
        elif states[version] is VersionState.SERVING:
            store.versions.roll_back(intact.version, owner)
        else:
            continue
        store.status.count(DAMAGED)
        log.error("policy-v%d serves in its place, and training goes on from it", intact.version)
