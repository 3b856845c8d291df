"""What is known of clients: what they put in for one request, and what their housekeeping looks like.

A client may add messages, or pieces of text, that it drops or changes in the next request. They are no part of the
conversation: lineage does not hash them, and no judge reads them as feedback. The engine sees them all the same, and
they are recorded as they came. Rules are data (`rollout.injections`, `rollout.side_rules`); those for the clients
named in `rollout.clients` come with us.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from openclaw_rl.config import Injection, RolloutConfig, SideRule
from openclaw_rl.rollout.lineage import LONGEST_REMEMBERED, MOST_REMEMBERED, message_text
from openclaw_rl.types import Message

OPENCLAW_INJECTIONS: tuple[Injection, ...] = (
    Injection(
        name="timestamp",
        pattern=r"\A\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?(?: [^\]\n]{1,40})?\] ?",
        action="cut",
    ),
    Injection(name="runtime_line", pattern=r"(?:\n\n|\A)Runtime: agent=[^\n]*\Z", action="cut"),
    Injection(name="runtime_context", pattern=r"\s*<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"),
    Injection(name="continue_task", pattern=r"Continue the current task from the existing transcript\b"),
)
"""OpenClaw's, in the order in which they are tried: what is cut comes before what is read."""

OPENCLAW_SIDE_RULES: tuple[SideRule, ...] = (
    SideRule(name="heartbeat", pattern=r"(?i)\s*read heartbeat\.md\b"),
    SideRule(name="memory_flush", pattern=r"(?i)\s*pre-compaction memory flush\b"),
    SideRule(
        name="compaction",
        role="system",
        pattern=r"(?i)\s*you are an? (?:\w+ )?context summarization assistant\b",
    ),
    SideRule(
        name="compaction",
        pattern=r"(?is)\s*(?:<conversation>.*</conversation>|the messages above are a conversation to summarize\b)",
    ),
    SideRule(name="slug", pattern=r"(?i)\s*based on this conversation, generate a short [^\n]{0,40}\bslug\b"),
    SideRule(
        name="title",
        pattern=r"(?i)\s*(?:please )?(?:generate|create|write|suggest) (?:an? )?(?:[\w,-]+ ){0,6}?(?:title|name)"
        r" for (?:this|the) (?:chat|conversation|session)\b",
    ),
    SideRule(name="cron", pattern=r"\s*\[cron:[^\]\n]*\]"),
)
"""OpenClaw's housekeeping: no user speaks in it."""

_INJECTIONS = {"openclaw": OPENCLAW_INJECTIONS}
_SIDE_RULES = {"openclaw": OPENCLAW_SIDE_RULES}
_HINT = re.compile(r"\bsessionId=([0-9A-Za-z-]{8,64})\b")


class ClientRules:
    """The rules of one configuration, compiled."""

    def __init__(self, config: RolloutConfig) -> None:
        injections = [rule for client in config.clients for rule in _INJECTIONS[client]] + list(config.injections)
        side_rules = [rule for client in config.clients for rule in _SIDE_RULES[client]] + list(config.side_rules)
        self._injections = [(rule, re.compile(rule.pattern)) for rule in injections]
        self._side_rules = [(rule, re.compile(rule.pattern)) for rule in side_rules]
        self._roles = {rule.role for rule in injections}
        self._remembered_text = lru_cache(maxsize=MOST_REMEMBERED)(self._plain_text)

    def plain(self, messages: Sequence[Message]) -> list[Message | None]:
        """The conversation itself, message by message: None where a message is set aside whole."""
        return [self._plain(message) if message["role"] in self._roles else message for message in messages]

    def side_rule(self, messages: Sequence[Message | None]) -> str | None:
        """The name of the rule that makes a request with these plain messages a side turn, or None."""
        kept = [message for message in messages if message is not None]
        last_user = [message for message in kept if message["role"] == "user"][-1:]  # tools may have answered since
        system = [message for message in kept if message["role"] in {"system", "developer"}]
        texts = {"user": [message_text(m) for m in last_user], "system": [message_text(m) for m in system]}
        for rule, pattern in self._side_rules:
            if any(pattern.match(text) for text in texts[rule.role]):
                return rule.name
        return None

    def _plain(self, message: Message) -> Message | None:
        content = message.get("content")
        if isinstance(content, str):
            look = self._remembered_text if len(content) <= LONGEST_REMEMBERED else self._plain_text
            kept = look(message["role"], content)
            if kept is None or kept == content:
                return None if kept is None else message
            return {**message, "content": kept}
        return self._plain_parts(message)

    def _plain_text(self, role: str, text: str) -> str | None:
        """What the rules leave of a text: None where its message is set aside."""
        for rule, pattern in self._injections:
            if rule.role != role:
                continue
            if rule.action == "cut":
                text = pattern.sub("", text, count=1)
            elif pattern.match(text):
                return None
        return text

    def _plain_parts(self, message: Message) -> Message | None:
        for rule, pattern in self._injections:
            if rule.role != message["role"]:
                continue
            if rule.action == "cut":
                message = _cut(message, pattern)
            elif pattern.match(message_text(message)):
                return None
        return message


def _cut(message: Message, pattern: re.Pattern[str]) -> Message:
    """The message without what `pattern` matches in its parts; the very same where it matches nothing."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    kept = [_cut_part(part, pattern) for part in content]
    return message if kept == content else {**message, "content": kept}


def _cut_part(part: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return {**part, "text": pattern.sub("", part["text"], count=1)}
    return part


def session_hint(messages: Sequence[Message], prompt_cache_key: str | None) -> str | None:
    """What the client seems to call this conversation: OpenClaw's session id in the first user message, or the cache
    key. It decides only between parents that content cannot tell apart, for it promises nothing.
    """  # fmt: skip
    first = next((message for message in messages if message["role"] == "user"), None)
    found = None if first is None else _HINT.search(message_text(first)[-1000:])
    return found.group(1) if found else prompt_cache_key
