from __future__ import annotations

import json
from itertools import count, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openclaw_rl.serving.engines.tool_parser import ToolCallDelta, ToolCallParser, new_call_id

CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
FUNCTION = {"name": "f", "arguments": '{"x": 1}'}


def run(pieces: list[str]) -> tuple[str, list[ToolCallDelta]]:
    numbers = count()
    parser = ToolCallParser(new_id=lambda: f"call{next(numbers)}")
    parsed = [*(parser.feed(piece) for piece in pieces), parser.finish()]
    return "".join(p.text for p in parsed), [call for p in parsed for call in p.tool_calls]


LONG_NUMBER = f'<tool_call>{{"name": "f", "arguments": {{"n": {"1" * 5000}}}}}</tool_call>'
DEEP = f'<tool_call>{{"name": "f", "arguments": {"[" * 50_000}</tool_call>'


@pytest.mark.parametrize(
    ("text", "visible", "functions"),
    [
        ("plain text", "plain text", []),
        ("", "", []),
        ("ends with spaces \n", "ends with spaces \n", []),
        (CALL, "", [FUNCTION]),
        (f"Let me see.\n{CALL}", "Let me see.", [FUNCTION]),
        (f"{CALL}\n{CALL}\n", "", [FUNCTION, FUNCTION]),
        (f"{CALL} and so on", "and so on", [FUNCTION]),
        ("a <tool_call>no json</tool_call> b", "a <tool_call>no json</tool_call> b", []),
        ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
        ('<tool_call>{"name": ""}</tool_call>', '<tool_call>{"name": ""}</tool_call>', []),
        ('<tool_call>{"name": "f", "arguments": 3}</tool_call>',) * 2 + ([],),
        (f"<tool_call>bad</tool_call>{CALL}", "<tool_call>bad</tool_call>", [FUNCTION]),
        ('<tool_call>{"name": "f"}', "", [{"name": "f", "arguments": "{}"}]),
        ('<tool_call>{"name": "f", "argu', '<tool_call>{"name": "f", "argu', []),
        ("a <tool_ca", "a <tool_ca", []),
        (LONG_NUMBER, LONG_NUMBER, []),
        (DEEP, DEEP, []),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "\\ud83d"}}</tool_call>',
            "",
            [{"name": "f", "arguments": '{"a": "\\ud83d"}'}],
        ),
        ('<tool_call>{"name": "f", "arguments": "\\ud83d"}</tool_call>',) * 2 + ([],),
        ('<tool_call>{"name": "\\ud83d"}</tool_call>',) * 2 + ([],),
        ("a < b", "a < b", []),
    ],
)
def test_by_hand(text: str, visible: str, functions: list[dict[str, str]]) -> None:
    shown, calls = run([text])
    assert shown == visible
    assert [call["function"] for call in calls] == functions
    assert [call["index"] for call in calls] == list(range(len(functions)))
    assert all(call["type"] == "function" for call in calls)


FRAGMENTS = st.sampled_from(
    ["a", " ", "\n", "<", "<tool_call>", "</tool_call>", CALL, '{"name": "f"}', "<tool", '{"name": ', "ü", "}"]
)


@given(st.lists(FRAGMENTS, max_size=8).map("".join), st.lists(st.integers(0, 200), max_size=12))
@example(f"x {CALL}\n\n{CALL} y ", [1, 5, 6, 7, 30, 60, 61])
def test_any_split_gives_the_same(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert run(pieces) == run([text])
    assert run(list(text)) == run([text])


@given(st.lists(st.sampled_from(["a ", "<tool_call>", "</tool_call>", "{", "\n", "<tool"]), max_size=8).map("".join))
def test_without_a_call_nothing_is_lost(text: str) -> None:
    assert run([text]) == (text, [])


def test_only_what_may_become_a_call_is_held_back() -> None:
    parser = ToolCallParser()
    assert parser.feed("Sure <too").text == "Sure"
    assert parser.feed("th>").text == " <tooth>"
    assert parser.feed(" and <tool_call>{").text == " and"
    assert parser.feed("more").text == ""


def test_ids_are_letters_and_digits() -> None:
    assert new_call_id().isalnum()
    assert new_call_id() != new_call_id()
    json.dumps(run([CALL])[1])
