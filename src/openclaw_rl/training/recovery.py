"""Going on where the last checkpoint is damaged: from the newest whole one that it was built on.

A failing disk, or a hand that went astray: a trainer that ended with an error would be started again for ever, and an
engine that is started again could not load the version in service. What a person took out of service is not taken up
again for that. A checkpoint that cannot be read is none of this: it may be sound, and is waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import CorruptPolicy
from openclaw_rl.store import Store
from openclaw_rl.training.checkpoint import load_checkpoint
from openclaw_rl.training.line import line_in_store
from openclaw_rl.training.trainer import TrainerState
from openclaw_rl.types import BASE_VERSION, PolicyVersion, VersionState

log = logging.getLogger(__name__)

DAMAGED = "checkpoints_damaged"
"""The counter of versions that were given up for the damage of their checkpoints."""

REASON = "damaged"
"""Why a version was taken out of service, or never serves, whose checkpoint is."""


class NoIntactCheckpoint(ConfigError):
    """Steps were committed, and training can go on from no checkpoint of theirs: what next is for a person to say."""


@dataclass(frozen=True, kw_only=True)
class Intact:
    """The newest whole checkpoint: its version, its state (None: nothing was trained yet), and what is newer.

    `checkpoint` is its directory, None without a state. `damaged` are the versions of newer checkpoints, which are
    not what was written, with the reason. `passed_over` are newer versions that were out of service, whole or not.
    """

    version: int
    state: TrainerState | None
    checkpoint: Path | None
    damaged: Sequence[tuple[int, str]] = ()
    passed_over: Sequence[PolicyVersion] = ()


def resumable(store: Store, owner: str, basis: int) -> Intact:
    """The state to train on from where `basis` is the owner's version in service, or the candidate that waits.

    Where its checkpoint is damaged, the version that it was built on takes its place in service, or the one before.

    Raises:
        NoIntactCheckpoint: `basis` and all that it was built on are damaged, or out of service.
        UnreadablePolicy: the system does not let a checkpoint be read; nothing was changed.
        Pinned: a person pinned a version while it was looked; it stays in service, damaged or not.
    """
    line = line_in_store(store, owner, basis)
    checkpoints = {step.version: Path(step.checkpoint) for step in store.samples.steps(owner)}
    intact = newest_intact(line, checkpoints)
    if intact.damaged:
        _fall_back(store, intact, owner)
    return intact


def newest_intact(line: Sequence[PolicyVersion], checkpoints: Mapping[int, Path]) -> Intact:
    """Look for a whole checkpoint from the first version of a line on, among those that nobody took out of service.

    Raises:
        NoIntactCheckpoint: if there are versions that have served, and none has one.
    """
    damaged: list[tuple[int, str]] = []
    served = False
    passed_over: list[PolicyVersion] = []
    for version in line:
        if version.state is VersionState.REJECTED or version.reason is not None:
            passed_over.append(version)
            continue
        path = checkpoints[version.version]
        try:
            state = load_checkpoint(path)
        except CorruptPolicy as error:
            damaged.append((version.version, str(error)))
            served = served or version.state is not VersionState.CANDIDATE
        else:
            return Intact(
                version=version.version, state=state, checkpoint=path, damaged=damaged, passed_over=passed_over
            )
    if served:
        others = f", and {_named(passed_over)} may not be taken up" if passed_over else ""
        raise NoIntactCheckpoint(
            f"none of the {len(damaged)} checkpoints that training may go on from is whole (the last: "
            f"{damaged[0][1]}){others}: put checkpoints/ back as it was, say which version is to serve with "
            "openclaw-rl policy rollback, or begin anew with another --run-dir"
        )
    # Candidates that nobody was served with stand on the base, as they stand on a version.
    return Intact(version=BASE_VERSION, state=None, checkpoint=None, damaged=damaged, passed_over=passed_over)


def _named(versions: Sequence[PolicyVersion]) -> str:
    return ", ".join(f"{one.name} ({one.reason})" for one in versions)


def _fall_back(store: Store, intact: Intact, owner: str) -> None:
    """Take an owner's versions with damaged checkpoints out of service, for the newest whole one.

    Training goes on from that one, and must be fed by its answers. The samples of what is given up stay trained: they
    are never used again.
    """
    states = {version.version: version.state for version in store.versions.of(owner)}
    if intact.passed_over:
        log.error("passed over, because they were taken out of service: %s", _named(intact.passed_over))
    for version, reason in intact.damaged:
        log.error("the checkpoint of policy-v%d is damaged: %s", version, reason)
        if states[version] is VersionState.CANDIDATE:
            store.versions.reject(version, REASON)
        elif states[version] is VersionState.SERVING:
            damaged = [number for number, _ in intact.damaged]
            store.versions.roll_back(intact.version, owner, reason=REASON, given_up=damaged)
        else:
            continue
        store.status.count(DAMAGED)
        log.error("policy-v%d, which it was built on, serves in its place: training goes on from it", intact.version)
