from __future__ import annotations

import pytest

from openclaw_rl.rollout.next_state import next_state_of
from openclaw_rl.types import Message, TurnType
from tests.builders import make_request, tool, user

SYSTEM: Message = {"role": "system", "content": "The time is now 12:00."}
ASSISTANT: Message = {"role": "assistant", "content": "I had more to say."}


@pytest.mark.parametrize(
    "messages",
    [
        (user("No, shorter."),),
        (tool("4", "a"), tool("9", "b")),
        (tool("4"), SYSTEM, user("and be quick")),
        (tool(""),),
        ({"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]},),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},),
    ],
)
def test_all_messages_are_kept_in_order_with_their_roles(messages: tuple[Message, ...]) -> None:
    assert next_state_of(make_request("t2", parent_turn_id="t1", new_messages=messages)) == messages


def test_what_follows_another_answer_is_not_about_ours() -> None:
    messages = (tool("4"), user("and now 3 + 3"), ASSISTANT, user("That is wrong."))
    assert next_state_of(make_request("t2", parent_turn_id="t1", new_messages=messages)) == messages[:2]


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (SYSTEM,),
        (ASSISTANT,),
        (ASSISTANT, user("That is wrong.")),
        (SYSTEM, ASSISTANT, user("That is wrong.")),
        (user("  \n"),),
        ({"role": "user", "content": None},),
        ({"role": "user", "content": [{"type": "text", "text": " "}]},),
        ({"content": "no role"},),
    ],
)
def test_nothing_that_reacts_is_no_next_state(messages: tuple[Message, ...]) -> None:
    assert next_state_of(make_request("t2", parent_turn_id="t1", new_messages=messages)) is None


def test_only_a_main_request_with_a_certain_parent_brings_one() -> None:
    said = (user("No, shorter."),)
    assert next_state_of(make_request("t2")) is None
    for values in ({"turn_type": TurnType.SIDE}, {"ambiguous": True}):
        assert next_state_of(make_request("t2", parent_turn_id="t1", new_messages=said, **values)) is None
