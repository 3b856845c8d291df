"""One answer of SGLang as it comes: pieces in, events out. Pure but for the tokenizer.

Where the weights may change under an answer, a token's version is certain only while the server says that it still
has the weights that it had before the answer began. From then on the text goes on as it comes, and the tokens are
told at the end, when SGLang says which weights drew which.

Nobody's are tokens that an adapter drew over other weights than those that it began on, and tokens of weights of
which a replacement failed half-way. The text goes on; their log-probabilities are not told, so nothing is trained on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from openclaw_rl.serving.engines.embedded.answer import AnswerText
from openclaw_rl.serving.engines.protocol import ChatEvent, EngineError, Finished, TokensDrawn
from openclaw_rl.serving.engines.sglang.wire import Chunk, drawers_of
from openclaw_rl.serving.engines.tool_parser import Parsed
from openclaw_rl.types import FinishReason

Drawn = tuple[int, float | None, tuple[int, ...] | None]
"""A token, its log-probability, and the set that it was drawn from."""

NO_DISTRIBUTION_TOKENS = 2
"""So many tokens in a row without a log-probability are no accident: the model is broken."""


class Reply:
    """Reads one answer. `version` draws it: an adapter (`adapted`), or the server's own weights.

    `weights`: what those are called as it begins; an adapter lies over them. `known`: the versions of weights by
    name, which grows while the answer comes; `doubted`: names that do not say any more what is there. `truncated`:
    whether kept sets are expected.
    """

    def __init__(
        self,
        text: AnswerText,
        *,
        version: int,
        weights: str,
        adapted: bool,
        known: Mapping[str, int],
        doubted: Collection[str],
        end_tokens: Collection[int],
        truncated: bool,
    ) -> None:
        self._text = text
        self._version = version
        self._weights = weights
        self._adapted = adapted
        self._known = known
        self._doubted = doubted
        self._end_tokens = end_tokens
        self._truncated = truncated
        self._all: list[Drawn] = []
        self._told = 0
        self._certain = True
        self._without = 0
        self._reason: FinishReason | None = None
        self.seen = 0
        """Tokens that the server has sent; more than the answer has, if it was slow to notice the end."""
        self.done = False
        self.server_done = False
        """Whether the server has said that it ends the answer."""

    def take(self, chunk: Chunk) -> list[ChatEvent]:
        """The events that a piece brings; `done` afterwards if it was the last that is wanted.

        Raises:
            EngineError: the model gives no distribution, or the server does not say who drew a token.
        """
        self.seen += len(chunk.ids)
        shown = self._feed(chunk)
        if not self._adapted and chunk.weights != self._weights:
            self._certain = False
        if self._reason is None and chunk.reason is not None:
            self._reason = chunk.reason
            shown = _joined(shown, self._text.finish())
        self.server_done = chunk.reason is not None
        self.done = self.server_done or (self._reason is not None and self._certain)
        events: list[ChatEvent] = []
        drawn = self._drawn(chunk, shown)
        if drawn.ids or drawn.text or drawn.tool_calls:
            events.append(drawn)
        if self.done:
            events.append(self._finished(chunk))
        return events

    def _feed(self, chunk: Chunk) -> Parsed:
        """Take the tokens up to the one that ends the answer; the text that they complete."""
        shown = Parsed()
        for number, (token, logprob) in enumerate(zip(chunk.ids, chunk.logprobs, strict=True)):
            if self._reason is not None:
                break
            self._without = self._without + 1 if logprob is None else 0
            if self._without >= NO_DISTRIBUTION_TOKENS:
                raise EngineError("the model's logits are not finite")
            self._all.append((token, logprob, chunk.kept[number] if chunk.kept is not None else None))
            shown = _joined(shown, self._text.feed((token,)))
            if token in self._end_tokens or self._text.stopped:
                self._reason = FinishReason.STOP
                shown = _joined(shown, self._text.finish())
        return shown

    def _drawn(self, chunk: Chunk, shown: Parsed) -> TokensDrawn:
        """The text, with the tokens that can be told now."""
        new = self._all[self._told :] if self._certain or self.done else []
        drawers = self._drawers(chunk, len(new))
        self._told += len(new)
        nobodys = self._nobodys(chunk)
        return TokensDrawn(
            ids=tuple(token for token, _, _ in new),
            logprobs=tuple(
                None if drawer in nobodys else logprob for (_, logprob, _), drawer in zip(new, drawers, strict=True)
            ),
            versions=tuple(self._version if self._adapted else self._known[drawer] for drawer in drawers),
            text=shown.text,
            tool_calls=shown.tool_calls,
            kept=tuple(kept for _, _, kept in new) if self._truncated and new else None,
        )

    def _drawers(self, chunk: Chunk, count: int) -> tuple[str, ...]:
        """The name of the weights that drew each of the next `count` tokens, or lay beneath the adapter at first."""
        if self._certain:
            return (self._weights,) * count
        return drawers_of(chunk.spans, len(self._all), self._known)[self._told :] if count else ()

    def _nobodys(self, chunk: Chunk) -> Collection[str]:
        """Of `_drawers` those whose tokens cannot be told as a version's.

        The name in a piece is never older than what drew its tokens, so an adapter's are not told from the first
        piece on that has another name than the answer began with.
        """
        return {self._weights} if self._adapted and chunk.weights != self._weights else self._doubted

    def _finished(self, chunk: Chunk) -> Finished:
        reason = self._reason or FinishReason.ABORT
        cut = len(self._all) < self.seen
        return Finished(
            finish_reason=self._text.finish_reason(reason),
            prompt_tokens=chunk.prompt_tokens,
            completion_tokens=len(self._all) if cut else chunk.completion_tokens,
        )


def _joined(one: Parsed, other: Parsed) -> Parsed:
    return Parsed(text=one.text + other.text, tool_calls=one.tool_calls + other.tool_calls)
