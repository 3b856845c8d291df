"""Words, sentences and roles of messages: the small pure functions that judges and hints share."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

from openclaw_rl.types import Message

_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_CJK_CHAR = re.compile(f"[{_CJK}]")
_TOKEN = re.compile(rf"[a-z0-9\u0300-\u036f]+(?:'[a-z]+)?|[{_CJK}]|[\U0001F300-\U0001FAFF\u2600-\u27BF]|[?!]")
_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[\"'”’」』）]*|\n+|:(?=\s+[A-Z])")
_FUNCTION_WORD_LIST = """
a an the of in on at to for and or but is are was were be been do does did it its this that these those i me
my you your we our he she they them his her their with as by from into so if then than not no can could
would should will just please tell what which who whom whose when where why how there here about have has
had
"""
_FUNCTION_WORDS = frozenset(_FUNCTION_WORD_LIST.split())


def content_text(message: Message) -> str:
    """The text of a message: a string, the text parts of a list, or nothing (null content)."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return ""


def answer_text(message: Message) -> str:
    """What an answer shows: its words, then each tool call as `name: arguments`."""
    calls = message.get("tool_calls") or ()
    functions = [call.get("function", {}) for call in calls if isinstance(call, dict)]
    lines = [f"{function.get('name', '')}: {function.get('arguments', '')}" for function in functions]
    return "\n".join(part for part in (content_text(message), *lines) if part)


def is_cjk(text: str) -> bool:
    """Say whether the text holds any Chinese or Japanese character."""
    return _CJK_CHAR.search(text) is not None


def tokens(text: str) -> list[str]:
    """Lower-case words without accents, single CJK characters, emoji, and the marks `?` and `!`."""
    plain = unicodedata.normalize("NFKD", text.lower().replace("’", "'"))
    return _TOKEN.findall(plain)


def content_words(text: str) -> set[str]:
    """The words that carry a subject, cut to a rough stem; CJK text gives its character pairs."""
    found = tokens(text)
    words = {
        word.rstrip("s")[:7] for word in found if word.isascii() and word.isalnum() and word not in _FUNCTION_WORDS
    }
    pairs = {a + b for a, b in pairwise(found) if is_cjk(a) and is_cjk(b)}
    return words | pairs


def sentences(text: str, *, at_colons: bool = True) -> list[str]:
    """Split into sentences at `. ! ? …`, their Chinese forms and line breaks; also at a colon before a capital.

    A mark inside quotation marks that a small letter follows ends nothing: 'say "Stop!" and go'.
    """
    parts, start = [], 0
    for match in _END.finditer(text):
        mark, rest = match.group(), text[match.end() :].lstrip()
        quoted = mark[-1] in "\"'”’)]" and rest[:1].islower()
        if quoted or (mark == ":" and not at_colons):
            continue
        parts.append(text[start : match.end()].strip())
        start = match.end()
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def is_question(sentence: str) -> bool:
    """Say whether a sentence ends as a question; a quoted question at its end is none."""
    return sentence.rstrip(" )").endswith(("?", "？"))


def head_tail(text: str, limit: int) -> str:
    """Keep at most `limit` characters: two thirds from the head, the rest from the tail, the cut marked."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return f"{text[:head].rstrip()} … {text[len(text) - (limit - head) :].lstrip()}"


def last_user_text(messages: Sequence[Message]) -> str:
    """The words of the last user message, or an empty text."""
    return next((content_text(message) for message in reversed(messages) if message.get("role") == "user"), "")


def shared_budget(lengths: Sequence[int], total: int) -> list[int]:
    """How many characters each part may keep of a common budget: equal shares, and what one does not need goes on."""
    limits = [0] * len(lengths)
    left = total
    for done, index in enumerate(sorted(range(len(lengths)), key=lambda one: lengths[one])):
        limits[index] = min(lengths[index], left // (len(lengths) - done))
        left -= limits[index]
    return limits
