"""What any judge offers the judging loop, and what it may raise."""

from __future__ import annotations

from typing import Protocol

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.judging.text import answer_text, last_user_text
from openclaw_rl.types import Judgement, Turn


class JudgeError(Exception):
    """This turn could not be judged now; worth another try. `reason` is a short word for the counters."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class JudgeUnavailable(JudgeError):
    """What the judge needs is down: no fault of the turn, which does not use up one of its attempts.

    `retry_after_s`: when the endpoint itself says that it may be asked again, None where it does not.
    """

    def __init__(self, reason: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason, message)
        self.retry_after_s = retry_after_s


class JudgeMisconfigured(ConfigError):
    """The judge cannot work as configured; found at start-up, so that nothing is judged by something else."""


class Judge(Protocol):
    """Turns a turn with its next state into a judgement. Several calls may run at once."""

    @property
    def kind(self) -> str:
        """The name under which judgements are stored."""
        ...

    @property
    def prompt_version(self) -> str:
        """What decides, by name and content hash: a prompt, or the weights of a head."""
        ...

    async def judge(self, turn: Turn) -> Judgement:
        """Judge one turn.

        Raises:
            JudgeError: if it could not be judged now.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


def task_of(turn: Turn) -> str:
    """What the turn was asked: the last user message of its own context."""
    return last_user_text(turn.request.messages)


def output_of(turn: Turn) -> str:
    """What the turn answered, tool calls included."""
    return answer_text(turn.answer)
