"""Reads `<tool_call>{"name": ..., "arguments": ...}</tool_call>` out of an answer while it is being written.

Pure and incremental: however the text is cut into pieces, the visible text and the tool calls are the same. Nothing
is lost: what turns out not to be a tool call comes out as text. Whitespace next to a tool call is layout and is
dropped.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

ToolCallDelta = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """What a piece of text completed: `text` for the reader, `tool_calls` as OpenAI deltas with `index`."""

    text: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


def new_call_id() -> str:
    """A fresh id for a tool call: letters and digits only, which is all that some providers accept."""
    return "call" + uuid.uuid4().hex[:24]


class ToolCallParser:
    """Feed pieces, then `finish`. Holds back only what may still become a tool call."""

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self._new_id = new_id
        self._held = ""
        self._spaces = ""
        self._after_call = False
        self.calls = 0

    def feed(self, piece: str) -> Parsed:
        """Take a piece; return what is decided by it."""
        self._held += piece
        text = ""
        calls: list[ToolCallDelta] = []
        while True:
            start = self._held.find(CALL_OPEN)
            if start < 0:
                break
            text += self._visible(self._held[:start])
            self._held = self._held[start:]
            end = self._held.find(CALL_CLOSE)
            if end < 0:
                return Parsed(text=text, tool_calls=tuple(calls))
            block, self._held = self._held[: end + len(CALL_CLOSE)], self._held[end + len(CALL_CLOSE) :]
            call = self._call(block[len(CALL_OPEN) : end])
            text += self._visible(block) if call is None else ""
            calls += [] if call is None else [call]
        keep = _possible_start(self._held)
        text += self._visible(self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]
        return Parsed(text=text, tool_calls=tuple(calls))

    def finish(self) -> Parsed:
        """The text is over: an unclosed but complete call counts, anything else held back is text."""
        held, self._held = self._held, ""
        if held.startswith(CALL_OPEN):
            call = self._call(held[len(CALL_OPEN) :])
            if call is not None:
                return Parsed(tool_calls=(call,))
        text = self._visible(held)
        spaces, self._spaces = self._spaces, ""
        return Parsed(text=text + ("" if self._after_call else spaces))

    def _visible(self, text: str) -> str:
        """`text` as far as it can be shown; spaces at its end wait for what follows them."""
        text = self._spaces + text
        if self._after_call:
            text = text.lstrip()
        shown = text.rstrip()
        self._spaces = text[len(shown) :]
        self._after_call = self._after_call and not shown
        return shown

    def _call(self, body: str) -> ToolCallDelta | None:
        function = read_call(body)
        if function is None:
            return None
        self._spaces, self._after_call = "", True
        self.calls += 1
        return {"index": self.calls - 1, "id": self._new_id(), "type": "function", "function": function}


def read_call(body: str) -> dict[str, str] | None:
    """`{"name", "arguments"}` (arguments a JSON string) of what stands between the marks, None if it is no call."""
    try:
        return _function(json.loads(body))
    except (ValueError, RecursionError):  # no JSON, or a number that Python does not read, or nested too deeply
        return None


def _function(value: Any) -> dict[str, str] | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    name, arguments = value["name"], value.get("arguments", {})
    if isinstance(arguments, dict):
        spelled = json.dumps(arguments, ensure_ascii=False)
        arguments = spelled if is_text(spelled) else json.dumps(arguments)
    if not isinstance(arguments, str) or not is_text(name + arguments):
        return None
    return {"name": name, "arguments": arguments}


def is_text(value: str) -> bool:
    """Whether it can be sent: JSON may spell half of a surrogate pair, which is no character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _possible_start(text: str) -> int:
    """How many characters at the end of `text` may be the beginning of a tool call."""
    for length in range(min(len(CALL_OPEN) - 1, len(text)), 0, -1):
        if CALL_OPEN.startswith(text[-length:]):
            return length
    return 0
