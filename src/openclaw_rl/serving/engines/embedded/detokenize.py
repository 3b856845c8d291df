"""Token ids → text, one at a time: never half a character, never the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REPLACEMENT = "�"
_WINDOW = 5
"""Tokens before the new ones that are decoded with them, for tokenizers whose text depends on a neighbour."""
_LONGEST_CHARACTER = 8
"""After this many undecodable tokens the bytes are broken rather than incomplete, and are shown as such."""


class IncrementalDetokenizer:
    """Decodes a growing sequence in constant time per token; special tokens have no text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = 0

    def feed(self, ids: Sequence[int]) -> str:
        """The text that `ids` complete; what may be half a UTF-8 character waits, of fewer than eight tokens."""
        self._ids += ids
        return self._take(last=False)

    def finish(self) -> str:
        """The rest, with a replacement character for bytes that never became a character."""
        return self._take(last=True)

    def _take(self, *, last: bool) -> str:
        start = max(0, self._shown - _WINDOW)
        before = self._decode(self._ids[start : self._shown])
        text = self._decode(self._ids[start:])
        waiting = len(self._ids) - self._shown
        if text.endswith(REPLACEMENT) and not last and waiting < _LONGEST_CHARACTER:
            return ""
        self._shown = len(self._ids)
        return text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class StopStrings:
    """Cuts a text off before the first stop string, and holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def feed(self, piece: str) -> str:
        """The text that is decided by `piece`; nothing any more once `stopped`."""
        if self.stopped:
            return ""
        text = self._held + piece
        found = [position for stop in self._stops if (position := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back in vain."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
