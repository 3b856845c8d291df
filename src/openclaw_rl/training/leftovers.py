"""What a killed trainer left among the checkpoints of any owner, and that it stops only whom it has to."""

from __future__ import annotations

import logging
from pathlib import Path

from openclaw_rl.store import Store
from openclaw_rl.training.checkpoint import discard_uncommitted
from openclaw_rl.training.own_steps import roots

log = logging.getLogger(__name__)


def discard_leftovers(checkpoints: Path, store: Store, last_step: int) -> list[str]:
    """Remove what was not committed (`discard_uncommitted`), for the shared policy and for each owner.

    Where an owner's directory cannot be looked into or written it stays: a later checkpoint takes its place, or it is
    pruned. The shared one holds those of all owners, and is waited for.

    Raises:
        UnknownCheckpoints: if there are any that no dead trainer of this store can have left.
        OSError: the shared policy's cannot be looked into or written.
    """
    known, own_id = store.turns.any_known, store.identity.get()
    shared, *owned = roots(checkpoints)
    removed = discard_uncommitted(shared, last_step, known, own_id)
    for root in owned:
        try:
            removed += discard_uncommitted(root, last_step, known, own_id)
        except OSError as error:
            log.error("what a killed trainer left in %s, if anything, is not removed: %s", root, error)
    return removed
