"""The judges' prompts: text files in `prompts/`, each a chat with `=== role` lines and named places.

A file begins with the system message. Its version is its name with a hash of its content, and is stored in every
judgement that it made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from openclaw_rl.judging.head import digest
from openclaw_rl.types import Message

_ROLE = re.compile(r"^=== (user|assistant)\n", re.MULTILINE)
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt file. All messages but the last are the same for every turn: a prefix that an engine can keep."""

    name: str
    version: str
    constant: tuple[Message, ...]
    last: str

    def messages(self, values: Mapping[str, str]) -> tuple[Message, ...]:
        """The chat with its places filled; what is filled in is never read as a place itself."""
        content = _PLACE.sub(lambda match: values[match.group(1)], self.last)
        return (*self.constant, {"role": "user", "content": content})


def load_prompt(name: str) -> Prompt:
    """Load `prompts/{name}.txt`."""
    text = (files("openclaw_rl.judging") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")
    system, *rest = _ROLE.split(text)
    turns = [(role, content.strip()) for role, content in zip(rest[::2], rest[1::2], strict=True)]
    if not turns or turns[-1][0] != "user":
        raise ValueError(f"prompt {name} must end with a user message")
    constant = ({"role": "system", "content": system.strip()}, *({"role": r, "content": c} for r, c in turns[:-1]))
    return Prompt(name=name, version=f"{name}@{digest(text)}", constant=constant, last=turns[-1][1])


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionPrompt:
    """A prompt for verdict words: a text of examples that one of two words completes.

    It is written as an assistant's message, which any chat template renders, so that no engine needs a second way to
    be prompted. A small model reads such a list far better than questions and answers in turns.
    """

    name: str
    version: str
    user: str
    text: str
    good: str
    bad: str

    def messages(self, word: str, values: Mapping[str, str]) -> tuple[Message, ...]:
        """The chat with its places filled and completed by `word`."""
        text = _PLACE.sub(lambda match: values[match.group(1)], self.text)
        return ({"role": "user", "content": self.user}, {"role": "assistant", "content": text + word})


def load_completion_prompt(name: str) -> CompletionPrompt:
    """Load `prompts/{name}.txt` with its parts `text` and `words`."""
    raw = (files("openclaw_rl.judging") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")
    user, _, rest = raw.partition("\n=== text\n")
    text, _, words = rest.partition("\n=== words\n")
    good, bad = words.rstrip("\n").split("\n")
    return CompletionPrompt(name=name, version=f"{name}@{digest(raw)}", user=user, text=text, good=good, bad=bad)
