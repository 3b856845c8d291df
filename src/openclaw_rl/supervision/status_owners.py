"""What `status` says of owners' policies (`policies.per`): how many there are, who was there last, what is due."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.cli_names import shown
from openclaw_rl.config import Config
from openclaw_rl.rollout.waiting import held_owners
from openclaw_rl.serving.gateway import namesakes
from openclaw_rl.store import Store
from openclaw_rl.training.due import due_since

SHOWN = 4
"""Owners that are named, the last that were there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerReport:
    """One owner: what serves it, whether a person keeps that in service, and how many of its samples wait."""

    owner: str
    version: str
    samples_ready: int
    last_active_at: float
    pinned: bool = False

    def words(self) -> str:
        """One line for a person."""
        pinned = " (pinned)" if self.pinned else ""
        return f"{shown(self.owner)}: {self.version}{pinned}, {self.samples_ready} samples wait"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnersReport:
    """All owners in numbers (`seen`: with a session; `trained`: at least once; `waiting`: with samples that wait).

    Of those that wait, `due` have a batch that is due, and `held` are not trained now whether or not theirs is, the
    first of them for what `held_by` says. `last` are those that were there last, `namesakes` the keys that are called
    like a user of other keys.
    """

    per: str
    seen: int
    trained: int
    waiting: int
    due: int
    held: int
    held_by: str | None
    last: tuple[OwnerReport, ...]
    namesakes: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """Lines for a person."""
        lines = [f"{self.seen} seen, {self.trained} with a policy of their own; one policy per {self.per}"]
        lines += [one.words() for one in self.last]
        return lines + [f"warning: {namesakes.words(name)}" for name in self.namesakes]

    def batch(self) -> str:
        """What the next batch waits for."""
        due = f"{self.due} of {self.waiting} owners with samples have a batch that is due"
        return due if self.held_by is None else f"{due}; {self.held} of them held: {self.held_by}"


def owners_report(store: Store, config: Config, now: float) -> OwnersReport | None:
    """What there is to say; None with one policy for all."""
    if not config.policies.owned:
        return None
    ready = [one for one in store.samples.ready_owners(config.rollout.batch_size) if one.owner]
    counts = {one.owner: one.count for one in ready}
    seen, last = store.sessions.owners(SHOWN)
    pinned = store.versions.pinned_owners()
    held = held_owners(store, now)
    held_now = [one.owner for one in ready if one.owner in held]
    learning = [one for one in ready if one.owner not in held]
    return OwnersReport(
        per=config.policies.per,
        seen=seen,
        trained=len(store.versions.owners() - {""}),
        waiting=len(ready),
        due=sum(due_since(one, now, config.rollout) is not None for one in learning),
        held=len(held_now),
        held_by=held[held_now[0]] if held_now else None,
        last=tuple(
            OwnerReport(
                owner=owner,
                version=store.versions.serving(owner).name,
                samples_ready=counts.get(owner, 0),
                last_active_at=active,
                pinned=owner in pinned,
            )
            for owner, active in last
        ),
        namesakes=namesakes.namesakes(store, config),
    )
