"""What the clients were given, as they saw it: the other half of the evidence, kept by nobody who is killed."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """An answer whose end arrived: a whole body with status 200, or the chunk that says why the stream ends.

    `follows`: the turn that this request reacted to. `asked_again`: the client asked once more all the same (its
    connection broke behind the end, or it behaves as if it had). Times in seconds since the epoch.
    """

    turn_id: str
    conversation: str
    text: str
    version: int
    follows: str | None
    asked_again: bool
    began_at: float
    ended_at: float


@dataclass(kw_only=True)
class Ledger:
    """Shared by all clients and whoever kills; safe between threads."""

    accepted: list[Accepted] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    asking: int = 0
    streaming: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def accept(self, entry: Accepted) -> None:
        """Note an answer."""
        with self._lock:
            self.accepted.append(entry)

    def fail(self, kind: str) -> None:
        """Count an attempt that got no answer, as happens while a process is dead."""
        with self._lock:
            self.failures[kind] += 1

    def fault(self, words: str) -> None:
        """Note an answer that no death of a process explains."""
        with self._lock:
            self.faults.append(words)

    def change(self, *, asking: int = 0, streaming: int = 0) -> None:
        """Count requests that wait for an answer, and streams that have begun and not ended."""
        with self._lock:
            self.asking += asking
            self.streaming += streaming

    def answered_since(self, moment: float) -> bool:
        """Whether a request that was sent after `moment` was answered."""
        with self._lock:
            return any(entry.began_at > moment for entry in reversed(self.accepted))
