"""What waits for the next step: the shared policy's samples, or those of owners, each with a batch of their own."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.config import Config
from openclaw_rl.rollout.batches import batch_due
from openclaw_rl.store import Store
from openclaw_rl.training.due import due_since


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingSamples:
    """How many samples wait, and whether somebody's batch is due: `why` is a sentence."""

    count: int
    due: bool
    why: str


def waiting_samples(store: Store, config: Config, now: float) -> WaitingSamples:
    """What waits at `now` (seconds since the epoch).

    Samples of one owner's never fill another's batch (`policies.per`), and those that were made under another
    `policies.per` wait for nothing that could come. An owner whose policy a person pinned has no batch due.
    """
    if not config.policies.owned:
        ready = store.samples.ready("")
        decision = batch_due(ready.count, ready.oldest_created_at, now, config.rollout)
        return WaitingSamples(count=ready.count, due=decision.due, why=decision.why)
    owners = [one for one in store.samples.ready_owners(config.rollout.batch_size) if one.owner]
    pinned = store.versions.pinned_owners()
    due = sum(due_since(one, now, config.rollout) is not None for one in owners if one.owner not in pinned)
    return WaitingSamples(
        count=sum(one.count for one in owners),
        due=due > 0,
        why=f"{due} of {len(owners)} owners with samples have a batch that is due",
    )
