"""Text that looks like a special token, kept apart from special tokens.

A chat template marks where a message begins and ends with special tokens, whose spelling (`<|im_end|>`) anybody can
type. Tokenised as one string, a message that holds it would end there, and what follows would be a turn that nobody
took. So, before the template sees them, such spellings are replaced by marks that no client can guess; the rendered
text is encoded in the pieces between the marks, where every special token is the template's own; and in the place of
each mark come the ids of its spelling as ordinary text. A text without such spellings is one piece, encoded as ever.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

# A private-use character on each side: nothing that a template trims, splits at, or writes another way in JSON.
_OPEN, _CLOSE = "\ue000", "\ue001"


class SpecialTokens:
    """The special tokens of one tokenizer: how they are spelled, and what the spelling is as ordinary text."""

    def __init__(self, tokenizer: Any) -> None:
        """Not while another thread encodes: the tokenizer is switched to ordinary text and back."""
        self._tokenizer = tokenizer
        added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        # The longest first, as the tokenizer itself chooses between two that begin alike.
        self.spellings: tuple[str, ...] = tuple(
            sorted({*added, *tokenizer.all_special_tokens}, key=lambda spelling: (-len(spelling), spelling))
        )
        self._as_text = [
            tuple(tokenizer.encode(spelling, add_special_tokens=False, split_special_tokens=True))
            for spelling in self.spellings
        ]
        tokenizer.encode("", add_special_tokens=False, split_special_tokens=False)
        self._number = {spelling: number for number, spelling in enumerate(self.spellings)}
        self._pattern = re.compile("|".join(map(re.escape, self.spellings)) or r"(?!)")

    def hiding(self) -> Hiding:
        """Fresh marks, for one rendering."""
        return Hiding(self)

    def encode(self, text: str) -> list[int]:
        """The ids of text in which every spelling is meant as the token."""
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False)]

    def as_text(self, number: int) -> tuple[int, ...]:
        """The ids of spelling `number` as ordinary text."""
        return self._as_text[number]

    def replace(self, text: str, opening: str) -> str:
        """`text` with each spelling replaced by a mark that begins with `opening`."""
        return self._pattern.sub(lambda found: f"{opening}{self._number[found.group()]}{_CLOSE}", text)


class Hiding:
    """The marks of one rendering. Put them into what the client wrote, render, then encode or restore the result."""

    def __init__(self, tokens: SpecialTokens) -> None:
        self._tokens = tokens
        self._opening = f"{_OPEN}{secrets.token_hex(8)}."
        self._mark = re.compile(rf"{re.escape(self._opening)}(\d+){_CLOSE}")

    def hide(self, value: Any) -> Any:
        """The same JSON value with marks in place of spellings, in keys as well."""
        if isinstance(value, str):
            return self._tokens.replace(value, self._opening)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.hide(item) for item in value]
        return value

    def restore(self, text: str) -> str:
        """The text with the spellings in place of the marks."""
        return self._mark.sub(lambda found: self._tokens.spellings[int(found.group(1))], text)

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a rendered text: special tokens where the template put them, and nowhere else."""
        pieces = self._mark.split(text)  # text, number, text, number, …, text
        ids = self._tokens.encode(pieces[0])
        for number, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            ids += self._tokens.as_text(int(number))
            ids += self._tokens.encode(piece)
        return tuple(ids)
