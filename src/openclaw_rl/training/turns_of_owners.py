"""What is kept at hand of the policies whose turn (`due`) it is not, so that one trainer serves many owners."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from openclaw_rl.training.trainer import TrainerState


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
