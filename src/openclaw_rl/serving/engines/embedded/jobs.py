"""What the scheduler works on: sequences with tokens to read, and what becomes of their logits."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.serving.engines.embedded.answer import AnswerText
from openclaw_rl.serving.engines.embedded.cache import Slot
from openclaw_rl.serving.engines.embedded.sampling import Drawn, NonFiniteLogits, Wish, draw_all, log_probabilities
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    EngineError,
    Finished,
    ScoreRequest,
    ScoreResult,
    TokensDrawn,
)
from openclaw_rl.types import FinishReason

JobEvent = ChatEvent | ScoreResult | EngineError
Sink = Callable[[JobEvent], None]
"""Takes what a job has to say. Finished, ScoreResult and EngineError are a job's last word."""


class Job(ABC):
    """One sequence: `tokens` known so far, of which those in its slot have been read by the model."""

    def __init__(self, *, tokens: Sequence[int], version: int, sink: Sink) -> None:
        self.tokens = list(tokens)
        self.version = version
        self.say = sink
        self.slot: Slot | None = None
        self.cancelled = False
        self.done = False

    @property
    def read(self) -> int:
        """How many tokens the model has read."""
        return 0 if self.slot is None else len(self.slot.tokens)

    @property
    def unread(self) -> int:
        """How many known tokens it has not; a stream that is being written has exactly one."""
        return len(self.tokens) - self.read

    @property
    @abstractmethod
    def reusable(self) -> int:
        """How many of the first tokens need no reading if a slot holds them already."""

    @abstractmethod
    def wanted(self, length: int) -> list[int]:
        """For which of the next `length` unread tokens logits are needed (offsets)."""

    @abstractmethod
    def take(self, logits: Tensor) -> None:
        """Use the logits [n, V] of the wanted tokens just read."""

    def fail(self, error: EngineError) -> None:
        """End with an error."""
        self.done = True
        self.say(error)


class GenerationJob(Job):
    """Writes an answer, one token per reading."""

    def __init__(
        self,
        request: ChatRequest,
        *,
        prompt: Sequence[int],
        max_tokens: int,
        end_tokens: frozenset[int],
        tokenizer: Any,
        sink: Sink,
    ) -> None:
        super().__init__(tokens=prompt, version=request.version, sink=sink)
        self.sampling = request.sampling
        self.max_tokens = max_tokens
        self._prompt_tokens = len(prompt)
        self._end_tokens = end_tokens
        self._text = AnswerText(tokenizer, stop=request.sampling.stop, has_tools=bool(request.tools))
        generator, seed = torch.Generator(), request.sampling.seed
        generator.manual_seed(random.SystemRandom().getrandbits(63) if seed is None else seed & (2**63 - 1))
        self.wish = Wish(
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            generator=generator,
        )

    @property
    def drawn(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self._prompt_tokens

    @property
    def reusable(self) -> int:
        """All but the last, whose logits are needed."""
        return len(self.tokens) - 1

    def wanted(self, length: int) -> list[int]:
        """The last token's logits, once everything before it is read."""
        return [length - 1] if length == self.unread else []

    def take(self, logits: Tensor) -> None:
        """Draw the next token."""
        if len(logits):
            (choice,) = draw_all(logits[:1], [self.wish])
            self.accept(choice)

    def accept(self, choice: Drawn | None) -> None:
        """Go on with the token that was drawn, and end the answer if it is over.

        Raises:
            NonFiniteLogits: none could be drawn.
        """
        if choice is None:
            raise NonFiniteLogits("the model's logits are not finite")
        self.tokens.append(choice.token)
        parsed = self._text.feed((choice.token,))
        reason = self._end(choice.token)
        text, calls = parsed.text, parsed.tool_calls
        if reason is not None:
            rest = self._text.finish()
            text, calls = text + rest.text, calls + rest.tool_calls
        self.say(
            TokensDrawn(
                ids=(choice.token,),
                logprobs=(choice.logprob,),
                versions=(self.version,),
                text=text,
                tool_calls=calls,
                kept=(choice.kept,) if self.sampling.truncated else None,
            )
        )
        if reason is not None:
            self.done = True
            self.say(
                Finished(
                    finish_reason=self._text.finish_reason(reason),
                    prompt_tokens=self._prompt_tokens,
                    completion_tokens=self.drawn,
                )
            )

    def _end(self, token: int) -> FinishReason | None:
        if token in self._end_tokens or self._text.stopped:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.drawn >= self.max_tokens else None


class ScoreJob(Job):
    """Scores given tokens: reads all but the last, and keeps the log-probabilities of those from `start` on."""

    def __init__(self, request: ScoreRequest, *, sink: Sink) -> None:
        super().__init__(tokens=request.ids[:-1], version=request.version, sink=sink)
        self._ids = request.ids
        self._first = request.start - 1
        self._temperature = request.temperature
        self._logprobs: list[float] = []

    @property
    def reusable(self) -> int:
        """Those before the first token whose logits are needed."""
        return self._first

    def wanted(self, length: int) -> list[int]:
        """Every token that precedes a scored one."""
        return [offset for offset in range(length) if self.read + offset >= self._first]

    def take(self, logits: Tensor) -> None:
        """Look up the log-probabilities of the tokens that followed."""
        if len(logits):
            at = self._first + len(self._logprobs) + 1
            targets = torch.tensor(self._ids[at : at + len(logits)])
            logprobs = log_probabilities(logits, self._temperature)
            self._logprobs += logprobs.gather(1, targets[:, None])[:, 0].tolist()
        if self.unread == 0:
            self.done = True
            self.say(ScoreResult(logprobs=tuple(self._logprobs)))
