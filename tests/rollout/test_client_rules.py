"""What clients put in for one request, and what their housekeeping looks like."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from openclaw_rl.config import Injection, RolloutConfig, SideRule
from openclaw_rl.rollout.client_rules import ClientRules, session_hint
from openclaw_rl.rollout.lineage import LONGEST_REMEMBERED
from openclaw_rl.types import Message
from tests.builders import tool, user

RULES = ClientRules(RolloutConfig())
STAMP = "[Sun 2026-11-29 18:51 UTC] "
RUNTIME = "\n\nRuntime: agent=main | session=one | sessionId=339be286-f233-4a7f-a45e-aa775dd534e0 | host=box"
CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnone\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
CONTINUE = "Continue the current task from the existing transcript, preserving completed work."


def system(text: str) -> Message:
    return {"role": "system", "content": text}


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        (user(STAMP + "Hello" + RUNTIME), user("Hello")),
        (user("[Mon 2026-01-05 09:00 GMT+8] Hello"), user("Hello")),
        (user([{"type": "text", "text": STAMP + "Hello"}]), user([{"type": "text", "text": "Hello"}])),  # type: ignore[arg-type]
        (user(CONTEXT), None),
        (user([{"type": "text", "text": CONTEXT}]), None),  # type: ignore[arg-type]
        (user(STAMP + CONTINUE), None),
        (user(CONTINUE), None),
    ],
)
def test_what_openclaw_puts_in_is_set_aside(message: Message, plain: Message | None) -> None:
    assert RULES.plain([message]) == [plain]


@pytest.mark.parametrize(
    "message",
    [
        user("What happened on [Sun 2026-11-29 18:51 UTC] here?"),
        user("[draft] Hello"),
        user("Runtime: I want it to be fast.\nThanks"),
        user(f"What does {CONTEXT} mean?"),
        user("Please continue the current task from the existing transcript"),
        {"role": "assistant", "content": STAMP + "Hello"},
        tool(CONTEXT),
        system(CONTEXT),
        {"role": "user", "content": None},
    ],
)
def test_what_people_say_stays(message: Message) -> None:
    assert RULES.plain([message]) == [message]
    assert RULES.plain([message])[0] is message


def test_rules_of_the_configuration() -> None:
    config = RolloutConfig(
        clients=(),
        injections=(
            Injection(name="clock", pattern=r"\(at \d+\) ?", action="cut"),
            Injection(name="note", role="system", pattern="NOTE:"),
        ),
        side_rules=(SideRule(name="tags", pattern="Tag this"),),
    )
    rules = ClientRules(config)
    assert rules.plain([user("Hi (at 12) you (at 13)"), system("NOTE: x"), user(CONTEXT)]) == [
        user("Hi you (at 13)"), None, user(CONTEXT),
    ]  # fmt: skip
    assert rules.side_rule([user("Tag this chat")]) == "tags"
    assert rules.side_rule([user("Read HEARTBEAT.md if it exists")]) is None


@pytest.mark.parametrize("kind", [Injection, SideRule])
def test_a_broken_pattern_is_an_error_at_start_up(kind: Any) -> None:
    with pytest.raises(ValidationError, match="not a regular expression"):
        kind(name="x", pattern="(")


@pytest.mark.parametrize(
    ("rule", "messages"),
    [
        ("heartbeat", [user("Read HEARTBEAT.md if it exists (workspace context). Follow it strictly.")]),
        ("heartbeat", [user(STAMP + "Read HEARTBEAT.md if it exists."), user(CONTEXT)]),
        ("heartbeat", [user("Read HEARTBEAT.md"), {"role": "assistant", "content": None}, tool("nothing to do")]),
        ("memory_flush", [user("Hello"), user("Pre-compaction memory flush. Store durable memories now.")]),
        ("compaction", [system("You are a context summarization assistant. Read on."), user("<conversation>")]),
        ("compaction", [user("<conversation>\n[User]: hi\n</conversation>\n\nSummarize it.")]),
        ("slug", [user("Based on this conversation, generate a short 1-2 word filename slug (lowercase)")]),
        ("title", [user("Generate a short, descriptive title for this conversation:")]),
        ("title", [user("Please write a concise 5-word chat title for the conversation")]),
        ("cron", [user(STAMP + "[cron:4b1c daily report] Write the report.")]),
    ],
)
def test_housekeeping_is_recognised(rule: str, messages: list[Message]) -> None:
    assert RULES.side_rule(RULES.plain(messages)) == rule


@pytest.mark.parametrize(
    "messages",
    [
        [user("What is HEARTBEAT.md for? Read HEARTBEAT.md and tell me.")],
        [user("Write a title for the poem above.")],
        [user("Generate a short story")],
        [user("Explain what a pre-compaction memory flush is")],
        [system("You are a personal assistant. You never are a context summarization assistant.")],
        [user("Read HEARTBEAT.md"), {"role": "assistant", "content": "HEARTBEAT_OK"}, user("Hello")],
        [],
    ],
)
def test_what_people_ask_is_main(messages: list[Message]) -> None:
    assert RULES.side_rule(RULES.plain(messages)) is None


def test_session_hint() -> None:
    assert session_hint([user("Hello" + RUNTIME)], "key") == "339be286-f233-4a7f-a45e-aa775dd534e0"
    assert session_hint([system("sessionId=aaaaaaaa"), user("Hello")], "key") == "key"
    assert session_hint([], None) is None


@pytest.mark.parametrize("length", [LONGEST_REMEMBERED, LONGEST_REMEMBERED + 1])
def test_a_text_seen_before_is_read_as_it_was_the_first_time(length: int) -> None:
    stamped = f"[note] {'x' * length}"[:length]
    rule = Injection(name="note", pattern=r"\A\[note\] ", action="cut")
    rules = ClientRules(RolloutConfig(injections=(rule,)))
    messages = [{"role": "user", "content": stamped}, {"role": "assistant", "content": stamped}]
    expected = [{"role": "user", "content": stamped[7:]}, messages[1]]
    assert rules.plain(messages) == expected
    assert rules.plain(messages) == expected
