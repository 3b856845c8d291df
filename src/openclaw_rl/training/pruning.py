"""Which checkpoints of an owner stay on disk."""

from __future__ import annotations

import logging

from openclaw_rl.config import Config
from openclaw_rl.store import Store
from openclaw_rl.training.checkpoint import prune_checkpoints
from openclaw_rl.training.line import line_in_store
from openclaw_rl.training.own_steps import root_of
from openclaw_rl.training.teacher_setup import frozen_version
from openclaw_rl.types import VersionState

log = logging.getLogger(__name__)


def prune(config: Config, store: Store, owner: str) -> None:
    """Remove all checkpoints but the last, those in use, those kept for good, and the last refused ones.

    In use are also the last of those that the version in service was built on: training goes back to them where its
    own is damaged, however many refused ones are newer. One owner's directory that cannot be looked into or written
    stops nobody.
    """
    keep, interval = config.training.keep_checkpoints, config.training.save_interval
    needed = {VersionState.SERVING, VersionState.CANDIDATE}
    versions = store.versions.of(owner)
    in_use = {version.step for version in versions if version.state in needed or version.pinned}
    line = line_in_store(store, owner, store.versions.serving(owner).version)
    in_use |= {version.step for version in line[:keep]}
    frozen = frozen_version(config.training.teacher)
    in_use |= set() if frozen is None else {frozen}
    refused = [version.step for version in versions if version.state is VersionState.REJECTED]
    if interval:
        in_use |= {v.step for v in versions if v.step % interval == 0 and v.state is not VersionState.REJECTED}
    root = root_of(config.checkpoints_dir, owner)
    try:
        prune_checkpoints(root, keep=keep, in_use=in_use | set(refused[-keep:]))
    except OSError as error:
        if not owner:
            raise
        log.error("checkpoints in %s are not pruned: %s", root, error)
