"""An upstream's chunks as the engine protocol's events. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from openclaw_rl.serving.engines.openai.wire import FINISH, Chunk
from openclaw_rl.serving.engines.protocol import ChatEvent, EngineError, Finished, PromptRead, TokensDrawn


class AnswerReader:
    """Reads one answer. Tokens are counted by their ids; without ids there is text, and no token to train."""

    def __init__(self, *, version: int, with_logprobs: bool) -> None:
        """`with_logprobs` False: the log-probabilities are of another distribution, and not taken."""
        self._version = version
        self._with_logprobs = with_logprobs
        self._begun = False
        self._finish_reason: str | None = None
        self._usage: tuple[int, int] | None = None
        self._prompt_told = self._ids_told = False
        self._logprobs_told, self._logprobs_missed = False, False
        self.said_something = False

    @property
    def has_ids(self) -> bool:
        """Whether ids came, of prompt and answer. Whether all came is for the upstream's count of tokens to say."""
        return self._prompt_told and self._ids_told

    @property
    def has_logprobs(self) -> bool:
        """Whether log-probabilities came, of whichever distribution, one for each id."""
        return self._logprobs_told and not self._logprobs_missed

    def add(self, chunk: Chunk) -> Iterator[ChatEvent]:
        """The events that a chunk stands for.

        Raises:
            EngineError: the upstream withheld the answer.
        """
        if not self._begun:
            self._begun = True
            self._prompt_told = bool(chunk.prompt_ids)
            yield PromptRead(prompt_ids=chunk.prompt_ids or ())
        if chunk.ids or chunk.text or chunk.tool_calls:
            yield self._drawn(chunk)
        self._usage = chunk.usage or self._usage
        self.said_something |= bool(self._usage and self._usage[1])
        if chunk.finish_reason == "content_filter":
            raise EngineError("the upstream's content filter ended the answer")
        self._finish_reason = chunk.finish_reason or self._finish_reason

    def _drawn(self, chunk: Chunk) -> TokensDrawn:
        ids = chunk.ids or ()
        told = chunk.logprobs if chunk.logprobs and len(chunk.logprobs) == len(ids) else None
        self.said_something = True
        self._ids_told |= bool(ids)
        self._logprobs_told |= bool(chunk.logprobs)
        self._logprobs_missed |= bool(ids) and told is None
        return TokensDrawn(
            ids=ids,
            logprobs=told if told is not None and self._with_logprobs else (None,) * len(ids),
            versions=(self._version,) * len(ids),
            text=chunk.text,
            tool_calls=chunk.tool_calls,
        )

    def end(self) -> Iterator[ChatEvent]:
        """The last event.

        Raises:
            EngineError: the answer has no end.
        """
        if self._finish_reason is None:
            raise EngineError("the upstream ended the answer without finishing it")
        if self._finish_reason not in FINISH:
            raise EngineError(f"the upstream ended the answer for an unknown reason: {self._finish_reason[:40]}")
        prompt_tokens, completion_tokens = self._usage or (None, None)
        yield Finished(
            finish_reason=FINISH[self._finish_reason],
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
        )
