"""Whose turn it is, and what is kept at hand of the others' policies, so that one trainer serves many owners."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from openclaw_rl.config import Config
from openclaw_rl.rollout.waiting import PUT_OFF
from openclaw_rl.store import Store
from openclaw_rl.supervision.process import Reports
from openclaw_rl.training.due import next_owner
from openclaw_rl.training.publish import candidates
from openclaw_rl.training.put_off import PutOff
from openclaw_rl.training.trainer import TrainerState

TOLD = 100
"""Owners put off that are told by name, so that others count no batch of theirs as due."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A policy's whole training state, as it was after `version`."""

    version: int
    state: TrainerState


class KeptStates:
    """The states of the owners that were trained last, at most `limit`; others are read from their checkpoints."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._states: OrderedDict[str, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def put(self, owner: str, kept: Kept) -> None:
        """Keep one; the one that was kept longest makes room."""
        self._states[owner] = kept
        self._states.move_to_end(owner)
        while len(self._states) > self._limit:
            self._states.popitem(last=False)

    def take(self, owner: str, version: int) -> Kept | None:
        """What is kept of an owner, if it is of this version; it is kept no longer."""
        kept = self._states.pop(owner, None)
        return kept if kept is not None and kept.version == version else None

    def clear(self) -> None:
        """Keep nothing."""
        self._states.clear()


class Turns:
    """Gives the owners their turns (`due`). The shared policy, "", has all turns to itself."""

    def __init__(self, config: Config, store: Store, put_off: PutOff) -> None:
        """`put_off`: those for whom something failed have no turn till it is tried again."""
        self._config = config
        self._store = store
        self._put_off = put_off
        self._fruitless: dict[str, float] = {}

    def taken(self, owner: str) -> None:
        """An owner has a turn now, whatever comes of it."""
        if owner:
            self._fruitless[owner] = time.time()

    def next(self, reporter: Reports) -> str | None:
        """The owner whose batch is next; None, and said why, where nobody is to be trained now."""
        unpublished = {version.owner for version in candidates(self._store)}  # not trained before they are in service
        if not self._config.policies.owned:
            if "" not in unpublished:  # an owner's, of before, may wait: it is not what is trained
                return ""
            reporter.waiting(self._put_off.words("") or "what was trained to be in service")
            return None
        rollout = self._config.rollout
        held = unpublished | self._store.versions.pinned_owners() | self._put_off.owners()
        begun = [owner for owner in self._store.samples.claiming_owners() if owner and owner not in held]
        if begun:  # the batch that a dead predecessor held
            return begun[0]
        ready = self._store.samples.ready_owners(rollout.batch_size)
        learning = [one for one in ready if one.owner and one.owner not in held]
        self._fruitless = {one.owner: self._fruitless[one.owner] for one in ready if one.owner in self._fruitless}
        owner = next_owner(learning, time.time(), rollout, self._fruitless)
        if owner is None:
            passed = len(ready) - len(learning)
            words = f"a full batch of an owner: {len(learning)} have samples" + f", {passed} are held" * bool(passed)
            put_off = self._put_off.owners()
            again = [reason for one in sorted(put_off) if (reason := self._put_off.words(one)) is not None]
            told = [one.owner for one in ready if one.owner in put_off][:TOLD]
            count = sum(one.count for one in learning)
            reporter.waiting("; ".join([words, *again[:1]]), ready=count, owners=len(learning), **{PUT_OFF: told})
        return owner
