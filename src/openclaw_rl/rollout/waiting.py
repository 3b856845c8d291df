"""What waits for the next step: the shared policy's samples, or those of owners, each with a batch of their own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from openclaw_rl.cli_names import shown
from openclaw_rl.config import Config
from openclaw_rl.rollout.batches import batch_due
from openclaw_rl.store import Store
from openclaw_rl.training.due import due_since
from openclaw_rl.types import LoopName

BELIEVED_S = 10.0
"""How long what the trainer said of owners is taken for true: whoever says nothing for so long is not there."""
PUT_OFF = "put_off"
"""What the trainer says with it while it waits: owners with samples for whom something failed and is tried again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingSamples:
    """How many samples wait, and whether somebody's batch is due: `why` is a sentence."""

    count: int
    due: bool
    why: str


def waiting_samples(store: Store, config: Config, now: float) -> WaitingSamples:
    """What waits at `now` (seconds since the epoch).

    Samples of one owner's never fill another's batch (`policies.per`), and those that were made under another
    `policies.per` wait for nothing that could come. An owner who is held has no batch due.
    """
    if not config.policies.owned:
        ready = store.samples.ready("")
        decision = batch_due(ready.count, ready.oldest_created_at, now, config.rollout)
        return WaitingSamples(count=ready.count, due=decision.due, why=decision.why)
    owners = [one for one in store.samples.ready_owners(config.rollout.batch_size) if one.owner]
    held = held_owners(store, now)
    due = sum(due_since(one, now, config.rollout) is not None for one in owners if one.owner not in held)
    return WaitingSamples(
        count=sum(one.count for one in owners),
        due=due > 0,
        why=f"{due} of {len(owners)} owners with samples have a batch that is due",
    )


def held_owners(store: Store, now: float) -> Mapping[str, str]:
    """Who is not trained at `now`, and why: pinned, not served what was trained last, or put off by the trainer."""
    said = next((one for one in store.status.loops() if one.loop is LoopName.TRAINING), None)
    held: dict[str, str] = {}
    if said is not None and now - said.heartbeat_at <= BELIEVED_S:
        held |= {owner: f"what failed for {shown(owner)} is tried again" for owner in said.details.get(PUT_OFF, ())}
    for one in store.versions.candidates():
        held[one.owner] = f"{one.name} of {shown(one.owner)} is not in service yet"
    for owner in store.versions.pinned_owners():
        user = shlex.quote(owner) if shown(owner) == owner else "NAME"
        held[owner] = f"{shown(owner)} is pinned (openclaw-rl policy unpin --user {user})"
    return held
