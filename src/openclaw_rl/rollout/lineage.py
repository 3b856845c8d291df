"""Whose child a request is: a conversation recognised by its content.

A client repeats the whole conversation with every request. Each turn is stored under a hash of its messages and
its answer; a request whose messages begin with what a stored turn hashed is that turn's child, and the messages
after the answer are the turn's next state. Headers refine this, they are not needed for it.

Hashes are of a *canonical form*, because clients do not return an answer as they got it: they flatten parts,
drop thinking, trim whitespace, rewrite JSON arguments and strip punctuation from tool-call ids. Everything here
is pure; the store is asked by the caller.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, Protocol

from openclaw_rl.types import Message

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_NOT_ALPHANUMERIC = re.compile(r"[^0-9A-Za-z]+")
_DIGEST_BYTES = 24

MOST_REMEMBERED = 2048
"""Texts of which the outcome is kept: a client repeats its whole history with every request, and some fifty
conversations at a time fit."""
LONGEST_REMEMBERED = 2048
"""Characters; keeping longer ones would cost too much memory: so it is some MiB, tens of them at worst."""


class Candidate(Protocol):
    """A stored turn that may be the parent: what `store.turns.find_parents` returns."""

    @property
    def turn_id(self) -> str:
        """The turn."""
        ...

    @property
    def session_id(self) -> str:
        """Its session, by our id."""
        ...

    @property
    def context_hash(self) -> str:
        """The hash of its messages and answer."""
        ...

    @property
    def session_hint(self) -> str | None:
        """What its client seemed to call the conversation."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """Where a request belongs.

    `session_id` is None where nothing matched (a new session). `parent_turn_id` is None also where the match
    leaves nothing new, for then the parent has no next state. An ambiguous request has neither.
    """

    session_id: str | None
    parent_turn_id: str | None
    new_messages: tuple[Message, ...]
    ambiguous: bool


NO_LINEAGE = Lineage(session_id=None, parent_turn_id=None, new_messages=(), ambiguous=False)
AMBIGUOUS = Lineage(session_id=None, parent_turn_id=None, new_messages=(), ambiguous=True)


# --- the canonical form ------------------------------------------------------------------------------------


def strip_thinking(text: str) -> str:
    """`text` without its `<think>…</think>` blocks and the whitespace after each; one pass, linear time."""
    if _THINK_OPEN not in text:
        return text
    kept: list[str] = []
    position = 0
    while (opening := text.find(_THINK_OPEN, position)) >= 0:
        closing = text.find(_THINK_CLOSE, opening)
        if closing < 0:
            break
        kept.append(text[position:opening])
        position = closing + len(_THINK_CLOSE)
        while position < len(text) and text[position].isspace():
            position += 1
    kept.append(text[position:])
    return "".join(kept)


def message_text(message: Message) -> str:
    """The text of a message: a string as it is, the text (or refusal) of parts joined, nothing for null."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    return "".join(str(part.get("text", part.get("refusal", ""))) for part in content)


def canonical_id(identifier: str) -> str:
    """A tool-call id as every client keeps it: its ASCII letters and digits."""
    return _NOT_ALPHANUMERIC.sub("", identifier)


def canonical_arguments(arguments: Any) -> str:
    """Tool-call arguments with sorted keys, no whitespace and one spelling of each number.

    Text that is not JSON stays as it is, stripped; nothing at all means `{}`.
    """
    value = arguments
    if isinstance(arguments, str):
        if not arguments.strip():
            return "{}"
        try:
            value = json.loads(arguments, parse_float=_canonical_number)
        except (ValueError, RecursionError):
            return arguments.strip()
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        return str(arguments).strip()


def _canonical_number(literal: str) -> int | float:
    value = float(literal)
    # JavaScript clients write 2.0 as 2; beyond 2**53 the two are not the same number any more.
    return int(value) if value.is_integer() and abs(value) <= 2**53 else value


def canonical_message(message: Message) -> bytes:
    """The canonical form of one message, unambiguously framed: one line of JSON.

    Role, text, tool calls (id, name, arguments) and `tool_call_id`; other fields do not count.
    """
    role = message["role"]
    text = message_text(message)
    calls: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
    answered = message.get("tool_call_id")
    if not calls and answered is None:  # nearly always
        return _remembered_form(role, text) if len(text) <= LONGEST_REMEMBERED else _plain_form(role, text)
    form = [role, _canonical_text(role, text), [_canonical_call(call) for call in calls]]
    form.append(None if answered is None else canonical_id(answered))
    return json.dumps(form, separators=(",", ":")).encode("ascii") + b"\n"


def _canonical_text(role: str, text: str) -> str:
    return (strip_thinking(text) if role == "assistant" else text).rstrip()


def _plain_form(role: str, text: str) -> bytes:
    """The form of a message that is only a text: what the encoder would write, in a fifth of its time."""
    return f"[{_quoted(role)},{_quoted(_canonical_text(role, text))}]\n".encode("ascii")


_remembered_form = lru_cache(maxsize=MOST_REMEMBERED)(_plain_form)


def _canonical_call(call: Mapping[str, Any]) -> list[str]:
    function = call["function"]
    return [canonical_id(call.get("id") or ""), function["name"], canonical_arguments(function.get("arguments", ""))]


# --- hashes ------------------------------------------------------------------------------------------------


class ContextHasher:
    """A rolling hash over messages. `extended` leaves it as it was, so that a request is hashed only once."""

    def __init__(self, messages: Sequence[Message | None] = ()) -> None:
        self._state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for message in messages:
            self.add(message)

    def add(self, message: Message | None) -> None:
        """Take one more message in; None is one that was set aside."""
        if message is not None:
            self._state.update(canonical_message(message))

    def hexdigest(self) -> str:
        """The hash of all messages so far."""
        return self._state.hexdigest()

    def extended(self, message: Message) -> str:
        """The hash of all messages so far and one more."""
        state = self._state.copy()
        state.update(canonical_message(message))
        return state.hexdigest()


def context_hashes(messages: Sequence[Message | None], hasher: ContextHasher | None = None) -> list[tuple[int, str]]:
    """The hash of each prefix that ends in an assistant message, with the index after it, the shortest first.

    A message that was set aside (None) keeps its place and is not hashed. Time is linear in the total length. A given
    `hasher` must be fresh, and holds all messages afterwards, so that the answer can be hashed on top.
    """
    rolling = ContextHasher() if hasher is None else hasher
    hashes: list[tuple[int, str]] = []
    for index, message in enumerate(messages, start=1):
        rolling.add(message)
        if message is not None and message["role"] == "assistant":
            hashes.append((index, rolling.hexdigest()))
    return hashes


def context_hash(messages: Sequence[Message | None], answer: Message) -> str:
    """The hash under which a turn is stored: of its messages and its answer."""
    return ContextHasher(messages).extended(answer)


def stem_hash(messages: Sequence[Message | None], prefixes: Sequence[tuple[int, str]]) -> str:
    """The hash of all before the question: up to the last answer, or the instructions where there is none yet."""
    if prefixes:
        return prefixes[-1][1]
    opening: list[Message] = []
    for message in messages:
        if message is not None and message["role"] not in {"system", "developer"}:
            break
        opening += [] if message is None else [message]
    return ContextHasher(opening).hexdigest()


# --- the parent --------------------------------------------------------------------------------------------


def resolve(
    messages: Sequence[Message | None],
    prefixes: Sequence[tuple[int, str]],
    candidates: Sequence[Candidate],
    *,
    session_id: str | None = None,
    session_hint: str | None = None,
) -> Lineage:
    """Where a request with these `messages` belongs; None among them is one that was set aside.

    `prefixes` are its `context_hashes`; `candidates` the stored turns of the same key with one of those hashes,
    the latest first; `session_id` our id of the session that the client named, None where it named none.

    The longest matching prefix decides. Of several turns with that hash in one session (a regenerated answer with
    the same text) the latest is the parent; in different sessions the request is ambiguous, unless `session_hint`,
    what the client seems to call the conversation, fits one session only.
    """
    if session_id is not None:
        candidates = [candidate for candidate in candidates if candidate.session_id == session_id]
    by_hash: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_hash.setdefault(candidate.context_hash, []).append(candidate)
    for index, digest in reversed(prefixes):
        matching = by_hash.get(digest)
        if not matching:
            continue
        if len({candidate.session_id for candidate in matching}) > 1 and session_hint is not None:
            matching = [candidate for candidate in matching if candidate.session_hint == session_hint] or matching
        if len({candidate.session_id for candidate in matching}) > 1:
            return AMBIGUOUS
        return Lineage(
            session_id=matching[0].session_id,
            parent_turn_id=matching[0].turn_id if len(messages) > index else None,
            new_messages=tuple(message for message in messages[index:] if message is not None),
            ambiguous=False,
        )
    return NO_LINEAGE
