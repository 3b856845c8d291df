"""Whose batch is trained next, where several owners' policies are; imports no torch.

One trainer with one base model serves all owners. The owner whose batch has been due longest is next, counted from
its own last turn: whoever just had one stands behind everybody who was waiting by then. So between a batch being
due and its turn, each other owner has at most one. Of a turn that became a step the record tells, also after a
restart; of one that came to nothing only the process knows (`Turns`), and the next one begins without.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from openclaw_rl.config import RolloutConfig
from openclaw_rl.rollout.batches import batch_due
from openclaw_rl.store.ready_owners import OwnerReady


def due_since(ready: OwnerReady, now: float, config: RolloutConfig) -> float | None:
    """Since when this owner's batch is due (`rollout.batches`), in seconds since the epoch; None if it is not."""
    if not batch_due(ready.count, ready.oldest_created_at, now, config).due:
        return None
    full = math.inf if ready.full_at is None else ready.full_at
    old_enough = ready.count >= min(config.min_batch_size, config.batch_size)
    return min(full, ready.oldest_created_at + config.max_batch_wait_s if old_enough else math.inf)


def next_owner(
    ready: Iterable[OwnerReady], now: float, config: RolloutConfig, turns: Mapping[str, float] | None = None
) -> str | None:
    """The owner whose batch is trained next; None where none is due.

    Args:
        ready: what waits, by owner.
        now: seconds since the epoch.
        config: when a batch is due.
        turns: when owners had turns that came to nothing, of which the record has no step.
    """
    waiting: list[tuple[float, str]] = []
    for one in ready:
        since = due_since(one, now, config)
        if since is not None:
            last_turn = max(one.last_step_at or -math.inf, (turns or {}).get(one.owner, -math.inf))
            waiting.append((max(since, last_turn), one.owner))
    return min(waiting)[1] if waiting else None
