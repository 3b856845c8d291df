"""The client's own record of everything it asked: what the system's promises are checked against.

Nothing here comes from inside the system. Times are wall-clock seconds (`time.time`), so that they can be laid
beside the spans that the trainer records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path


class Purpose(StrEnum):
    """Why a request was made. Only the first two are conversation; the others leave no trace in the store."""

    QUESTION = "question"
    CLOSING = "closing"
    EVALUATION = "evaluation"
    TOLD = "told"
    """A held-out question to the base that is told the preference, while the last updates are made."""
    BYSTANDER = "bystander"


CONVERSATION = frozenset({Purpose.QUESTION, Purpose.CLOSING})
"""The purposes whose answers the system must have recorded."""


@dataclass(kw_only=True, slots=True)
class Entry:
    """One request and all that came of it; written to only while its stream is open, and by its user after it.

    `attempt` is 1 for the first answer to a question and 2 for the second try. `chunk_times` holds the arrival of
    every chunk that carried text. `cancelled`: the client itself hung up. `satisfied`, `on_topic` and `verdict` are
    the user's own; None until it has read.
    """

    purpose: Purpose
    model: str
    session: str | None
    question: str
    interaction: int | None
    attempt: int
    sent_at: float
    opened_at: float | None = None
    ended_at: float | None = None
    turn_id: str | None = None
    version: int | None = None
    status: int | None = None
    chunk_times: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None
    cancelled: bool = False
    satisfied: bool | None = None
    on_topic: bool | None = None
    verdict: int | None = None
    reaction: str | None = None

    @property
    def answered(self) -> bool:
        """The stream came to its proper end."""
        return self.error is None and self.finish_reason is not None and self.ended_at is not None

    @property
    def refused(self) -> bool:
        """No stream was opened: an HTTP error, or no answer at all."""
        return self.error is not None and self.opened_at is None and not self.cancelled

    @property
    def broken(self) -> bool:
        """A stream was opened and did not come to its proper end."""
        ended = self.opened_at is not None and self.ended_at is not None
        return ended and not self.answered and not self.cancelled

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the request to the first text, None if none came."""
        return self.chunk_times[0] - self.sent_at if self.chunk_times else None


class Ledger:
    """Every request in the order it was made. One thread appends; others may read at any time."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def add(self, entry: Entry) -> Entry:
        """Enter a request, before it is sent."""
        self._entries.append(entry)
        return entry

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def select(self, wanted: Callable[[Entry], bool]) -> tuple[Entry, ...]:
        """The entries that `wanted` says yes to, in order."""
        return tuple(entry for entry in self if wanted(entry))

    @property
    def first_answers(self) -> tuple[Entry, ...]:
        """The answered first tries, in the order of their interactions: what the preference score is taken over."""
        firsts = self.select(lambda x: x.purpose is Purpose.QUESTION and x.attempt == 1 and x.answered)
        return tuple(sorted(firsts, key=lambda x: x.sent_at))

    @property
    def interactions(self) -> int:
        """Different requests put to the policy in conversation: questions and closing words, not second tries."""
        questions = {x.interaction for x in self if x.purpose is Purpose.QUESTION}
        return len(questions) + len(self.select(lambda x: x.purpose is Purpose.CLOSING))

    @property
    def answers(self) -> int:
        """All answers given in conversation: first tries, second tries and those to closing words."""
        return len(self.select(lambda x: x.purpose in CONVERSATION and x.answered))

    @property
    def refused_requests(self) -> int:
        """Requests of any purpose that were refused."""
        return len(self.select(lambda x: x.refused))

    @property
    def broken_streams(self) -> int:
        """Streams of any purpose that broke."""
        return len(self.select(lambda x: x.broken))

    @property
    def verdicts(self) -> dict[str, int]:
        """The user's own verdict by turn, for every reaction that the user put into words."""
        return {x.turn_id: x.verdict for x in self if x.turn_id is not None and x.verdict is not None and x.reaction}

    def write(self, path: Path) -> None:
        """Write one JSON object per request."""
        with path.open("w", encoding="utf-8") as file:
            for entry in self:
                file.write(json.dumps(asdict(entry), ensure_ascii=False) + "\n")


def lost_turns(ledger: Ledger, recorded: Mapping[str, str]) -> tuple[Entry, ...]:
    """The answers of the conversation that the store does not hold, or holds with another text.

    Args:
        ledger: what the client saw.
        recorded: the answer's text by turn id, as the store has it.
    """
    return ledger.select(
        lambda x: (
            x.purpose in CONVERSATION and x.answered and (x.turn_id is None or recorded.get(x.turn_id) != x.text)
        )
    )


def preference_score(first_answers: tuple[Entry, ...], window: int = 16) -> float | None:
    """The share of the last `window` first answers that kept the preference; None before the first."""
    read = [x.satisfied for x in first_answers if x.satisfied is not None][-window:]
    return sum(read) / len(read) if read else None
