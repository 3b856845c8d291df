"""What `status` says of owners' policies (`policies.per`): how many there are, who was there last, what is due."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.config import Config
from openclaw_rl.store import Store
from openclaw_rl.training.due import due_since

SHOWN = 4
"""Owners that are named, the last that were there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerReport:
    """One owner: what serves it, and how many of its samples wait."""

    owner: str
    version: str
    samples_ready: int
    last_active_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnersReport:
    """All owners in numbers (`seen`: with a session; `trained`: at least once; `due`: with a due batch).

    `last` are those that were there last.
    """

    per: str
    seen: int
    trained: int
    waiting: int
    due: int
    last: tuple[OwnerReport, ...]

    def words(self) -> list[str]:
        """Lines for a person."""
        lines = [f"{self.seen} seen, {self.trained} with a policy of their own; one policy per {self.per}"]
        lines += [f"{_shown(one.owner)}: {one.version}, {one.samples_ready} samples wait" for one in self.last]
        return lines

    def batch(self) -> str:
        """What the next batch waits for."""
        return f"{self.due} of {self.waiting} owners with samples have a batch that is due"


def owners_report(store: Store, config: Config, now: float) -> OwnersReport | None:
    """What there is to say; None with one policy for all."""
    if not config.policies.owned:
        return None
    ready = [one for one in store.samples.ready_owners(config.rollout.batch_size) if one.owner]
    counts = {one.owner: one.count for one in ready}
    seen, last = store.sessions.owners(SHOWN)
    return OwnersReport(
        per=config.policies.per,
        seen=seen,
        trained=len(store.versions.owners() - {""}),
        waiting=len(ready),
        due=sum(due_since(one, now, config.rollout) is not None for one in ready),
        last=tuple(
            OwnerReport(
                owner=owner,
                version=store.versions.serving(owner).name,
                samples_ready=counts.get(owner, 0),
                last_active_at=active,
            )
            for owner, active in last
        ),
    )


def _shown(owner: str) -> str:
    """A name as it may stand in a terminal: no longer than a line, and nothing that moves its cursor."""
    plain = "".join(character if character.isprintable() else "?" for character in owner)
    return plain if len(plain) <= 40 else plain[:39] + "…"
