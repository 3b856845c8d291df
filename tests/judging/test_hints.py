from __future__ import annotations

import copy
from typing import Any

import pytest

from openclaw_rl.judging.hints import HINT_BLOCK, MAX_HINT_CHARS, corrective_part, insert_hint
from tests.builders import tool, user

BLOCK = HINT_BLOCK.format(hint="Be kind.")


def test_the_hint_follows_the_last_user_message() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "two"},
    ]
    before = copy.deepcopy(messages)
    assert insert_hint(messages, " Be kind. ") == (*messages[:3], {"role": "user", "content": "two" + BLOCK})
    assert messages == before


def test_tool_loops_keep_their_order() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]}
    messages = [user("go"), call, tool("ok")]
    assert insert_hint(messages, "Be kind.") == (user("go" + BLOCK), call, tool("ok"))


def test_parts_get_one_more() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]
    (message,) = insert_hint([{"role": "user", "content": parts}], "Be kind.")
    assert message["content"] == [*parts, {"type": "text", "text": BLOCK}]


@pytest.mark.parametrize("content", [None, "", []])
def test_empty_content(content: Any) -> None:
    assert insert_hint([{"role": "user", "content": content}], "Be kind.") == (user(BLOCK.strip()),)


def test_without_a_user_message() -> None:
    system = {"role": "system", "content": "s"}
    other = {"role": "assistant", "content": "a"}
    assert insert_hint([system, other], "Be kind.") == ({"role": "system", "content": "s" + BLOCK}, other)
    assert insert_hint([other], "Be kind.") == (other, user(BLOCK.strip()))


SYSTEM_NOTE = {"role": "system", "content": BLOCK.strip()}


def test_as_a_system_note() -> None:
    system = {"role": "developer", "content": "s"}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]}
    noted = {"role": "developer", "content": "s" + BLOCK}
    assert insert_hint([system, user("go"), call, tool("ok")], "Be kind.", "system") == (
        noted,
        user("go"),
        call,
        tool("ok"),
    )
    assert insert_hint([user("go"), call, tool("ok")], "Be kind.", "system") == (
        SYSTEM_NOTE,
        user("go"),
        call,
        tool("ok"),
    )
    assert insert_hint([], "Be kind.", "system") == (SYSTEM_NOTE,)


def test_a_system_message_that_does_not_lead_is_left_alone() -> None:
    later = [user("go"), {"role": "system", "content": "s"}]
    assert insert_hint(later, "Be kind.", "system") == (SYSTEM_NOTE, *later)
    assert insert_hint(later[1:] + later[:1], "Be kind.") == (later[1], user("go" + BLOCK))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("Make it rhyme.", "Make it rhyme."),
        ("Hm, wrong. Use grams, please. And what is flour?", "Use grams, please."),
        ("I meant the blue one.", "I meant the blue one."),
        ("Could you write it without jargon?", "Could you write it without jargon?"),
        ("Far too long. Then tell me: what is a bolt?", "Far too long."),
        ('Start with "Good day!" and be nice.', 'Start with "Good day!" and be nice.'),
        ("Green, not blue.", "Green, not blue."),
        ("太长了，请缩短。", "太长了，请缩短。"),
        ("Many thanks! Now write one for my cousin.", None),
        ("Wrong.", None),
        ("No!", None),
        ("👎", None),
        ("That is not what I asked.", None),
        ("You ignored my question.", None),
        ("How do mills work?", None),
        ("Are you sure?", None),
        ("答非所问。", None),
        ("", None),
    ],
)
def test_corrective_part(words: str, hint: str | None) -> None:
    assert corrective_part([user(words)]) == hint


def test_a_repeated_question_teaches_nothing() -> None:
    task = "Describe a water mill."
    assert corrective_part([user("No. Describe a water mill.")], task=task) is None
    assert (
        corrective_part([user("No. Describe a water mill, briefly, for children in rhyme.")], task="Sing.")
        is not None
    )


def test_only_users_words_are_read() -> None:
    assert corrective_part([tool("Error: please use --force instead")]) is None
    assert corrective_part([tool("done"), user("Use fewer words.")]) == "Use fewer words."


def test_a_hint_is_short() -> None:
    hint = corrective_part([user(" ".join(["Please write about the very old mill on the small river."] * 20))])
    assert hint is not None
    assert len(hint) <= MAX_HINT_CHARS
    assert hint.count("Please") == 3
