"""The simulated user's conversations: several threads, each holding one session after another.

The user sees answers and nothing else of the system; the system sees the user's words and nothing else of the
preference. Every decision about words is the `SimulatedUser`'s; here is only who speaks when.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.evaluation.ledger import Entry, Purpose
from openclaw_rl.evaluation.questions import Question
from openclaw_rl.evaluation.simulated_user import Reaction, SimulatedUser
from openclaw_rl.evaluation.talker import Ask, Talker


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversationOptions:
    """How the user talks. Seeds of requests derive from `seed`, the interaction and the attempt."""

    model: str = "policy"
    interactions: int = 48
    threads: int = 2
    temperature: float = 0.5
    max_tokens: int = 40
    closing_max_tokens: int = 8
    words_per_second: float = 4.0
    """Reading speed; a pause is only taken while another thread's stream is open."""
    seed: int = 0
    session_prefix: str = "demo"


class InteractionBudget:
    """The interactions still to be had. Closing words are one too; a second try at a question is not.

    A question is tried at most twice, so the answers stay within twice the interactions by themselves.
    """

    def __init__(self, interactions: int) -> None:
        self._left = interactions

    def take(self) -> bool:
        """Whether one more different request may be put to the policy; if so it is taken."""
        if self._left == 0:
            return False
        self._left -= 1
        return True

    @property
    def spent(self) -> bool:
        """Whether none is left."""
        return self._left == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Session:
    """A session to hold: its name, its questions, and the interaction that its first question is."""

    name: str
    questions: tuple[Question, ...]
    first_interaction: int

    def after(self, asked: int) -> _Session:
        """What is left of it when so many of its questions were asked, as a session of its own."""
        return _Session(
            name=f"{self.name}-{asked}",
            questions=self.questions[asked:],
            first_interaction=self.first_interaction + asked,
        )


class Conversations:
    """Holds all planned sessions, `threads` at once."""

    def __init__(self, talker: Talker, user: SimulatedUser, options: ConversationOptions) -> None:
        self._talker = talker
        self._user = user
        self._options = options
        self._budget = InteractionBudget(options.interactions)
        self._queue = deque(_named_sessions(user.plan_sessions(options.interactions), options.session_prefix))
        self.sessions_planned = len(self._queue)
        self.sessions_open = 0

    async def hold(self) -> None:
        """Hold every session; returns when the last one has ended."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.threads):
                group.create_task(self._thread())

    async def _thread(self) -> None:
        """One thread of conversation: a session after the other until none is left."""
        while self._queue and not self._budget.spent:
            session = self._queue.popleft()
            self.sessions_open += 1
            try:
                await self._hold_session(session)
            finally:
                self.sessions_open -= 1

    async def _hold_session(self, session: _Session) -> None:
        """Ask each question, react, try again where the user wants to, and part with words or without.

        The user goes on in the same chat only after an answer that it accepted.

        A request that fails ends the session: the user has no answer to go on from.
        """
        messages: list[dict[str, str]] = []
        reaction: Reaction | None = None
        entry: Entry | None = None
        for index, question in enumerate(session.questions):
            if not self._budget.take():
                return
            words = question.text if reaction is None else self._user.go_on(reaction, question)
            if reaction is not None and entry is not None:
                entry.reaction = reaction.words
            interaction = session.first_interaction + index
            entry = await self._say(session, messages, words, question, interaction, attempt=1)
            if not entry.answered:
                return
            reaction = await self._react(question, entry)
            if reaction.retry:
                entry.reaction = reaction.words
                entry = await self._say(session, messages, reaction.words, question, interaction, attempt=2)
                if not entry.answered:
                    return
                reaction = await self._react(question, entry)
            if reaction.verdict < 0:
                self._open_another_chat(session.after(index + 1))
                return
        if reaction is None or entry is None or not self._user.parts_in_words(reaction, entry.attempt):
            return
        if self._budget.take():
            entry.reaction = reaction.words
            await self._close(session, messages, reaction)

    def _open_another_chat(self, rest: _Session) -> None:
        """Whoever was refused twice says no more in that chat, and asks what is left in a new one."""
        if rest.questions:
            self._queue.appendleft(rest)

    async def _react(self, question: Question, entry: Entry) -> Reaction:
        """Read the answer, taking the time that takes, and form a verdict on it."""
        reaction = self._user.react(question, entry.text, entry.attempt)
        entry.satisfied = self._user.preference.satisfied(entry.text)
        entry.on_topic = self._user.preference.on_topic(question, entry.text)
        entry.verdict = reaction.verdict
        reading_s = len(entry.text.split()) / self._options.words_per_second
        await self._talker.streams.pause_while_others(reading_s)
        return reaction

    async def _say(
        self,
        session: _Session,
        messages: list[dict[str, str]],
        words: str,
        question: Question,
        interaction: int,
        attempt: int,
    ) -> Entry:
        """Add the user's words to the session, ask, and add the answer."""
        messages.append({"role": "user", "content": words})
        entry = await self._talker.ask(
            Ask(
                purpose=Purpose.QUESTION,
                model=self._options.model,
                messages=tuple(messages),
                question=question.text,
                session=session.name,
                interaction=interaction,
                attempt=attempt,
                temperature=self._options.temperature,
                max_tokens=self._options.max_tokens,
                seed=request_seed(self._options.seed, interaction, attempt),
            )
        )
        messages.append({"role": "assistant", "content": entry.text})
        return entry

    async def _close(self, session: _Session, messages: list[dict[str, str]], reaction: Reaction) -> None:
        """End the session with the reaction to its last answer; few tokens, since nobody waits for the reply."""
        messages.append({"role": "user", "content": reaction.words})
        await self._talker.ask(
            Ask(
                purpose=Purpose.CLOSING,
                model=self._options.model,
                messages=tuple(messages),
                question=reaction.words,
                session=session.name,
                temperature=self._options.temperature,
                max_tokens=self._options.closing_max_tokens,
                seed=request_seed(self._options.seed, session.first_interaction, 3),
                done=True,
            )
        )


def request_seed(seed: int, interaction: int, attempt: int) -> int:
    """A sampling seed of its own for every request of a run, the same in every run of one seed."""
    return (seed * 1_000_003 + interaction * 4 + attempt) % 2**31


def _named_sessions(plan: Sequence[Sequence[Question]], prefix: str) -> list[_Session]:
    """Give each planned session a name, and its questions their place in the order of the plan."""
    sessions: list[_Session] = []
    asked = 0
    for number, questions in enumerate(plan):
        sessions.append(_Session(name=f"{prefix}-{number:03d}", questions=tuple(questions), first_interaction=asked))
        asked += len(questions)
    return sessions
