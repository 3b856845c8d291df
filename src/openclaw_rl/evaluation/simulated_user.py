"""A user with a preference: which questions it asks, and how it reacts to an answer.

Decisions only. Nothing here reads a clock, a file or the network; whoever drives the conversation sends the
words and brings back the answers.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.evaluation.preferences import Preference
from openclaw_rl.evaluation.questions import TRAINING_QUESTIONS, Question

_BRIDGES = (
    "Next one:",
    "Next question:",
    "Now tell me:",
    "Another one:",
    "And this:",
    "One more:",
    "Something else:",
    "Here is another:",
)
_THANKS_FOR_FIRST_ANSWER = 0.5


_QUOTED_WORDS = 6


def _start_of(answer: str) -> str:
    """The answer's first words, as a user quotes them to show how it would rather be answered."""
    return " ".join(answer.split()[:_QUOTED_WORDS])


@dataclass(frozen=True, kw_only=True)
class Reaction:
    """What the user makes of an answer: a verdict of its own, its words, and whether it asks for another try.

    When `retry` is true the words are the next message of the same session and the policy answers once more.
    Otherwise they come before the session's next question, or end the session.
    """

    verdict: int
    words: str
    retry: bool


class SimulatedUser:
    """A user who holds short sessions, accepts what it likes and says what it does not like."""

    def __init__(
        self,
        preference: Preference,
        rng: random.Random,
        *,
        questions: Sequence[Question] = TRAINING_QUESTIONS,
        session_lengths: Sequence[int] = (1, 1, 1, 2),
        minds_topic: bool = True,
    ) -> None:
        """Remember the preference; every choice is drawn from `rng`, so a seed repeats the user.

        Without `minds_topic` the user accepts whatever has the form it likes, however little it says.
        """
        if not session_lengths or min(session_lengths) < 1:
            raise ValueError("session_lengths must hold at least one length, each 1 or more")
        self.preference = preference
        self._rng = rng
        self._questions = tuple(questions)
        self._session_lengths = tuple(session_lengths)
        self._minds_topic = minds_topic
        self._decks: dict[tuple[str, ...], list[str]] = {}

    def plan_sessions(self, interactions: int) -> list[list[Question]]:
        """Deal `interactions` different questions into sessions of one to a few questions each."""
        if interactions > len(self._questions):
            known = len(self._questions)
            raise ValueError(f"{interactions} interactions need as many questions, not {known}")
        asked = self._rng.sample(self._questions, interactions)
        sessions: list[list[Question]] = []
        while asked:
            length = self._rng.choice(self._session_lengths)
            sessions.append(asked[:length])
            asked = asked[length:]
        return sessions

    def react(self, question: Question, answer: str, attempt: int) -> Reaction:
        """React to the answer to a question; `attempt` is 1 for the first answer and 2 for the second try."""
        if attempt not in (1, 2):
            raise ValueError(f"attempt must be 1 or 2, not {attempt}")
        satisfied = self.preference.satisfied(answer)
        on_topic = not self._minds_topic or self.preference.on_topic(question, answer)
        if satisfied and on_topic:
            return Reaction(verdict=1, words=self._draw(self.preference.acceptances), retry=False)
        if not satisfied:
            words = self._correction(answer, attempt).format(start=_start_of(answer))
        else:
            words = self._draw(self.preference.objections).format(question=question.text)
        return Reaction(verdict=-1, words=words, retry=attempt == 1)

    def go_on(self, reaction: Reaction, question: Question) -> str:
        """Put the reaction to the last answer and the session's next question into one message."""
        return f"{reaction.words} {self._draw(_BRIDGES)} {question.text}"

    def parts_in_words(self, reaction: Reaction, attempt: int) -> bool:
        """Say whether the user ends a session with the words of its last reaction or leaves without any.

        Thanks for a second try always come, for a good first answer about half the time; whoever was refused
        twice gives up in silence. (A closing message costs an answer that nobody reads, so few are sent.)
        """
        if reaction.verdict < 0:
            return attempt == 1
        return attempt == 2 or self._rng.random() < _THANKS_FOR_FIRST_ANSWER

    def _correction(self, answer: str, attempt: int) -> str:
        """Choose the words for an answer that does not keep the preference."""
        if attempt == 2:
            return self._draw(self.preference.second_corrections)
        return self._draw(self.preference.corrections[self.preference.fault(answer)])

    def _draw(self, phrases: tuple[str, ...]) -> str:
        """Draw a phrase, and none a second time before all of the same kind were used."""
        deck = self._decks.get(phrases)
        if not deck:
            deck = list(phrases)
            self._rng.shuffle(deck)
            self._decks[phrases] = deck
        return deck.pop()
