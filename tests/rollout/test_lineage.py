"""Content lineage: what counts as the same message, prefix hashes, and whose child a request is."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.rollout.lineage import (
    AMBIGUOUS,
    NO_LINEAGE,
    ContextHasher,
    canonical_arguments,
    canonical_message,
    context_hash,
    context_hashes,
    resolve,
    strip_thinking,
)
from openclaw_rl.types import Message

USER = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Hi."}


@dataclass(frozen=True)
class Stored:
    turn_id: str
    session_id: str
    context_hash: str
    session_hint: str | None = None


def calls(arguments: str, call_id: str = "call1", content: Any = None) -> Message:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": content, "tool_calls": [{"id": call_id, "function": function}]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ANSWER, {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}),
        (ANSWER, {"role": "assistant", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i."}]}),
        (ANSWER, {"role": "assistant", "content": "Hi. \n\n"}),
        (ANSWER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi."}),
        (ANSWER, {"role": "assistant", "content": "<think>a</think>H<think>b</think>i."}),
        (ANSWER, {**ANSWER, "tool_calls": None, "refusal": None, "reasoning_content": "hm"}),
        (ANSWER, {**ANSWER, "tool_calls": []}),
        (calls("{}"), calls("{}", content="")),
        (calls("{}"), calls("")),
        (calls('{"a":1,"b":[1,2]}'), calls('{ "b": [1, 2.0],\n"a": 1 }')),
        (calls("{}", "call_1-x"), calls("{}", "call1x")),
        (calls('{"a":"\\u00e9"}'), calls('{"a":"é"}')),
        (
            {"role": "tool", "tool_call_id": "call_1", "content": "x"},
            {"role": "tool", "tool_call_id": "call1", "content": "x", "name": "f"},
        ),
    ],
)
def test_same_message_in_another_dress(one: Message, other: Message) -> None:
    assert canonical_message(one) == canonical_message(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ANSWER, USER),
        (ANSWER, {"role": "user", "content": "Hi."}),
        (ANSWER, {"role": "assistant", "content": " Hi."}),
        (ANSWER, {"role": "assistant", "content": "hi."}),
        (USER, {"role": "user", "content": "<think>a</think>Hello"}),
        (calls('{"a":1}'), calls('{"a":2}')),
        (calls('{"a":1}'), calls('{"a":"1"}')),
        (calls('{"a":1}'), calls('{"a":true}')),
        (calls("not json"), calls("not  json")),
        (calls("{}", "a"), calls("{}", "b")),
        (
            {"role": "tool", "tool_call_id": "a", "content": "x"},
            {"role": "tool", "tool_call_id": "b", "content": "x"},
        ),
    ],
)
def test_different_messages_differ(one: Message, other: Message) -> None:
    assert canonical_message(one) != canonical_message(other)


def test_thinking_that_never_ends_stays() -> None:
    assert strip_thinking("a<think>b") == "a<think>b"
    assert strip_thinking("<think>a</think>b<think>c") == "b<think>c"


def test_thinking_is_stripped_in_linear_time() -> None:
    started = time.process_time()
    assert strip_thinking("<think>" * 200_000) == "<think>" * 200_000
    strip_thinking("<think></think>" * 100_000 + "<think>" * 100_000)
    assert time.process_time() - started < 2.0


def test_arguments_that_would_break_a_parser_do_not() -> None:
    assert canonical_arguments("[" * 100_000) == "[" * 100_000
    assert canonical_arguments("1" * 10_000) == "1" * 10_000
    assert canonical_arguments('{"a":"\\ud800"}') == '{"a":"\\ud800"}'
    assert canonical_arguments({"b": 1, "a": 2}) == '{"a":2,"b":1}'


PROPERTY = settings(max_examples=40)
TEXT = st.text(max_size=20)
NUMBERS = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
CALL = st.builds(
    lambda call_id, name, arguments: {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    },
    st.text("abc123_-", min_size=1, max_size=6),
    st.sampled_from(["f", "g"]),
    st.dictionaries(TEXT, JSON, max_size=3),
)
MESSAGE = st.one_of(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["system", "user"]), TEXT),
    st.builds(lambda text: {"role": "assistant", "content": text}, TEXT),
    st.builds(
        lambda items: {"role": "assistant", "content": None, "tool_calls": items},
        st.lists(CALL, min_size=1, max_size=2),
    ),
    st.builds(lambda text: {"role": "tool", "tool_call_id": "c1", "content": text}, TEXT),
)
CONVERSATION = st.lists(MESSAGE, min_size=1, max_size=8)


@PROPERTY
@given(JSON)
def test_canonical_arguments_keep_their_meaning_and_are_stable(value: Any) -> None:
    canonical = canonical_arguments(json.dumps(value, indent=3))
    assert json.loads(canonical) == value
    assert canonical_arguments(canonical) == canonical


def rewritten(message: Message) -> Message:
    """A message as another client would send it back."""
    copy: dict[str, Any] = json.loads(json.dumps(message))
    if isinstance(copy.get("content"), str):
        copy["content"] = [{"type": "text", "text": copy["content"]}, {"type": "text", "text": " \n"}]
    for item in copy.get("tool_calls") or ():
        arguments = json.loads(item["function"]["arguments"])
        item["function"]["arguments"] = json.dumps(dict(reversed(arguments.items())), indent=1, ensure_ascii=False)
        item["id"] = "-".join(item["id"])
    return copy


@PROPERTY
@given(CONVERSATION)
def test_rewriting_changes_no_hash(messages: list[Message]) -> None:
    assert context_hashes([rewritten(message) for message in messages]) == context_hashes(messages)


@PROPERTY
@given(CONVERSATION)
def test_each_prefix_hash_is_the_hash_of_that_prefix_alone(messages: list[Message]) -> None:
    hashes = context_hashes(messages)
    assert [index for index, _ in hashes] == [
        index for index, message in enumerate(messages, start=1) if message["role"] == "assistant"
    ]
    for index, digest in hashes:
        assert digest == ContextHasher(messages[:index]).hexdigest()
        assert digest == context_hash(messages[: index - 1], messages[index - 1])


@PROPERTY
@given(CONVERSATION, CONVERSATION)
def test_equal_hashes_mean_equal_canonical_messages(one: list[Message], other: list[Message]) -> None:
    same = [canonical_message(message) for message in one] == [canonical_message(message) for message in other]
    assert (ContextHasher(one).hexdigest() == ContextHasher(other).hexdigest()) == same


@PROPERTY
@given(CONVERSATION, TEXT, CONVERSATION)
def test_child_finds_its_parent_and_what_is_new(asked: list[Message], text: str, new: list[Message]) -> None:
    answer = {"role": "assistant", "content": text}
    parent = Stored("parent", "s", context_hash(asked, answer))
    messages = [*asked, answer, *new]
    lineage = resolve(messages, context_hashes(messages), [parent])
    assert (lineage.session_id, lineage.parent_turn_id, lineage.ambiguous) == ("s", "parent", False)
    assert lineage.new_messages == tuple(new)


@PROPERTY
@given(CONVERSATION)
def test_hasher_is_left_as_it_was(messages: list[Message]) -> None:
    hasher = ContextHasher(messages)
    before = hasher.hexdigest()
    assert hasher.extended(ANSWER) == context_hash(messages, ANSWER)
    assert hasher.hexdigest() == before


# --- choosing ----------------------------------------------------------------------------------------------

LONG = [USER, ANSWER, USER, ANSWER, USER]
FIRST, SECOND = (digest for _, digest in context_hashes(LONG))


def choose(candidates: Sequence[Stored], session_id: str | None = None) -> Any:
    return resolve(LONG, context_hashes(LONG), candidates, session_id=session_id)


def test_longest_prefix_wins() -> None:
    lineage = choose([Stored("t1", "s", FIRST), Stored("t2", "s", SECOND)])
    assert (lineage.parent_turn_id, lineage.new_messages) == ("t2", (USER,))


def test_shorter_prefix_where_the_longer_is_unknown() -> None:
    lineage = choose([Stored("t1", "s", FIRST)])
    assert (lineage.parent_turn_id, lineage.new_messages) == ("t1", (USER, ANSWER, USER))


def test_nothing_known() -> None:
    assert choose([]) == NO_LINEAGE
    assert resolve([USER], context_hashes([USER]), []) == NO_LINEAGE


def test_latest_of_equal_turns_in_one_session() -> None:
    assert choose([Stored("new", "s", SECOND), Stored("old", "s", SECOND)]).parent_turn_id == "new"


def test_equal_turns_in_two_sessions_are_ambiguous_without_a_name() -> None:
    candidates = [Stored("a", "s1", SECOND), Stored("b", "s2", SECOND), Stored("c", "s1", FIRST)]
    assert choose(candidates) == AMBIGUOUS
    assert choose(candidates, session_id="s2").parent_turn_id == "b"
    assert choose(candidates, session_id="s3") == NO_LINEAGE


def test_history_without_anything_new_belongs_to_the_session_but_is_no_next_state() -> None:
    messages = LONG[:4]
    lineage = resolve(messages, context_hashes(messages), [Stored("t2", "s", SECOND)])
    assert (lineage.session_id, lineage.parent_turn_id, lineage.new_messages) == ("s", None, ())
