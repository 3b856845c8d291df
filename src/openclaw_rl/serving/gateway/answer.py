"""An answer while it is generated: what the engine's events add up to. Pure."""

from __future__ import annotations

from typing import Any

from openclaw_rl.serving.engines.protocol import ChatEvent, EngineError, Finished, PromptRead, TokensDrawn
from openclaw_rl.types import ExclusionReason, FinishReason, Message, TokenRecord


class AnswerInProgress:
    """Adds events up. Every token counts, whatever text the engine withheld."""

    def __init__(self) -> None:
        self.finished: Finished | None = None
        self._prompt_ids: tuple[int, ...] = ()
        self.ids: list[int] = []
        self.logprobs: list[float | None] = []
        self._versions: list[int] = []
        self._kept: list[tuple[int, ...] | None] = []
        self._told_kept = False
        self._text: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, event: ChatEvent) -> None:
        """Take one event in.

        Raises:
            EngineError: where the event cannot follow those before it.
        """
        if self.finished is not None:
            raise EngineError("the engine went on after its last event")
        if isinstance(event, TokensDrawn):
            if not len(event.ids) == len(event.logprobs) == len(event.versions):
                raise EngineError("the engine sent tokens, log-probabilities and versions of different lengths")
            self.ids.extend(event.ids)
            self.logprobs.extend(event.logprobs)
            self._versions.extend(event.versions)
            self._add_kept(event)
            self._text.append(event.text)
            for delta in event.tool_calls:
                self._add_call(delta)
        elif isinstance(event, PromptRead):
            self._prompt_ids = event.prompt_ids
        else:
            if event.finish_reason is FinishReason.ABORT:
                raise EngineError("the engine gave the answer up")
            self.finished = event

    def _add_kept(self, event: TokensDrawn) -> None:
        """Line the kept sets up with the ids: an event without them says nothing of its tokens."""
        if event.kept is not None and len(event.kept) != len(event.ids):
            raise EngineError("the engine sent tokens and kept sets of different lengths")
        self._told_kept = self._told_kept or event.kept is not None
        self._kept.extend([None] * len(event.ids) if event.kept is None else event.kept)

    def _add_call(self, delta: Any) -> None:
        call = self._calls.setdefault(
            delta["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        if delta.get("id"):
            call["id"] = delta["id"]
        function = delta.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""

    def message(self) -> Message:
        """The assistant message as a client will send it back: null content only beside tool calls."""
        text = "".join(self._text)
        if not self._calls:
            return {"role": "assistant", "content": text}
        calls = [self._calls[index] for index in sorted(self._calls)]
        return {"role": "assistant", "content": text or None, "tool_calls": calls}

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The prompt as the engine saw it; empty before it said so."""
        return self._prompt_ids

    def tokens(self) -> TokenRecord:
        """The exact tokens."""
        return TokenRecord(
            prompt_ids=self._prompt_ids,
            response_ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            versions=tuple(self._versions),
            kept=tuple(self._kept) if self._told_kept else None,
        )

    def count_mismatch(self) -> ExclusionReason | None:
        """Whether the engine's own counts differ from the ids that it sent; only known here, so decided here."""
        if self.finished is None:
            return None
        counted = (self.finished.prompt_tokens, self.finished.completion_tokens)
        sent = (len(self._prompt_ids), len(self.ids))
        agree = all(count is None or count == number for count, number in zip(counted, sent, strict=True))
        return None if agree or not self.ids else ExclusionReason.TOKEN_COUNT_MISMATCH
