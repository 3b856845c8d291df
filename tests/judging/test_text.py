from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.judging.text import answer_text, content_text, content_words, head_tail, sentences, tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No. It is red! Why?", ["No.", "It is red!", "Why?"]),
        ("好的。谢谢！再来一个？", ["好的。", "谢谢！", "再来一个？"]),
        ('Say "Stop!" and go on. Then rest.', ['Say "Stop!" and go on.', "Then rest."]),
        ("Pi is 3.14 today", ["Pi is 3.14 today"]),
        ("one\n\ntwo", ["one", "two"]),
        ("Again: Where?", ["Again:", "Where?"]),
        ("", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_a_colon_can_be_left_alone() -> None:
    assert sentences("Again: Where?", at_colons=False) == ["Again: Where?"]


@given(st.text(max_size=80))
def test_no_letter_is_lost_between_sentences(text: str) -> None:
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@given(st.text(max_size=60), st.integers(min_value=1, max_value=40))
def test_head_and_tail_are_kept(text: str, limit: int) -> None:
    cut = head_tail(text, limit)
    if len(text) <= limit:
        assert cut == text
    else:
        assert " … " in cut
        assert len(cut) <= limit + 3


def test_head_tail_by_hand() -> None:
    assert head_tail("abcdefghij", 6) == "abcd … ij"


def test_content_of_every_shape() -> None:
    assert content_text({"role": "user", "content": "hi"}) == "hi"
    assert content_text({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}) == "a"
    assert content_text({"role": "assistant", "content": None}) == ""
    call = {"function": {"name": "ls", "arguments": "{}"}}
    assert answer_text({"role": "assistant", "content": None, "tool_calls": [call]}) == "ls: {}"


def test_words() -> None:
    assert tokens("It’s 好 👍 flâner!") == ["it's", "好", "👍", "fla\u0302ner", "!"]
    assert content_words("What are the bees doing?") == {"bee", "doing"}
