"""The text side of one answer: sampled ids in, visible text and tool calls out; says when a stop string ended it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openclaw_rl.serving.engines.embedded.detokenize import IncrementalDetokenizer, StopStrings
from openclaw_rl.serving.engines.tool_parser import Parsed, ToolCallParser
from openclaw_rl.types import FinishReason


class AnswerText:
    """Detokenizer, stop strings and (where the request has tools) the tool-call parser, one after the other."""

    def __init__(self, tokenizer: Any, *, stop: Sequence[str], has_tools: bool) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stop = StopStrings(stop)
        self._parser = ToolCallParser() if has_tools else None

    @property
    def stopped(self) -> bool:
        """Whether a stop string was seen: no more tokens are wanted."""
        return self._stop.stopped

    def feed(self, ids: Sequence[int]) -> Parsed:
        """What `ids` complete: one after the other, for of several at once the last may be half a character."""
        return self._parse(self._stop.feed("".join([self._detokenizer.feed([token]) for token in ids])))

    def finish(self) -> Parsed:
        """Everything that was still held back."""
        rest = self._parse(self._stop.feed(self._detokenizer.finish()) + self._stop.finish())
        if self._parser is None:
            return rest
        last = self._parser.finish()
        return Parsed(text=rest.text + last.text, tool_calls=rest.tool_calls + last.tool_calls)

    def finish_reason(self, reason: FinishReason) -> FinishReason:
        """`reason`, or TOOL_CALLS when the answer holds at least one tool call."""
        called = self._parser is not None and self._parser.calls > 0
        return FinishReason.TOOL_CALLS if called and reason is not FinishReason.ABORT else reason

    def _parse(self, text: str) -> Parsed:
        return Parsed(text=text) if self._parser is None else self._parser.feed(text)
