from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.models import load_tokenizer
from openclaw_rl.serving.engines.embedded.answer import AnswerText
from openclaw_rl.serving.engines.embedded.detokenize import IncrementalDetokenizer, StopStrings
from openclaw_rl.testing.scripted_engine import ByteTokenizer
from openclaw_rl.types import FinishReason


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Any:
    return load_tokenizer(tiny)


@given(st.text(max_size=20))
def test_bytes_come_out_as_whole_characters(text: str) -> None:
    decoder = IncrementalDetokenizer(ByteTokenizer())
    pieces = [decoder.feed([byte]) for byte in text.encode()] + [decoder.finish()]
    assert "".join(pieces) == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)


@pytest.mark.parametrize("text", ["Hello, wörld! 🎉🎉 日本語", "  two spaces\n\n\tand tabs", "👩‍👩‍👧"])
def test_the_model_s_tokenizer(tokenizer: Any, text: str) -> None:
    decoder = IncrementalDetokenizer(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = [decoder.feed([token]) for token in ids] + [decoder.finish()]
    assert "".join(pieces) == text
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)


def test_special_tokens_have_no_text(tokenizer: Any) -> None:
    decoder = IncrementalDetokenizer(tokenizer)
    ids = [*tokenizer.encode("a", add_special_tokens=False), tokenizer.eos_token_id]
    assert decoder.feed(ids) + decoder.finish() == "a"


def test_half_a_character_at_the_end_is_shown_as_broken() -> None:
    decoder = IncrementalDetokenizer(ByteTokenizer())
    assert decoder.feed("ü".encode()[:1]) == ""
    assert decoder.finish() == "\N{REPLACEMENT CHARACTER}"


def test_broken_bytes_do_not_hold_the_stream_for_ever() -> None:
    decoder = IncrementalDetokenizer(ByteTokenizer())
    shown = "".join(decoder.feed([0xFF]) for _ in range(20))
    assert len(shown) >= 8


@given(st.text(alphabet="abc", max_size=30), st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3))
def test_stop_strings_cut_where_the_whole_text_would_be_cut(text: str, stops: list[str]) -> None:
    expected, stopped = text, False
    for end in range(len(text) + 1):  # the first moment at which some stop string is complete
        found = [text[:end].find(stop) for stop in stops if stop in text[:end]]
        if found:
            expected, stopped = text[: min(found)], True
            break
    stop = StopStrings(stops)
    shown = "".join(stop.feed(letter) for letter in text) + stop.finish()
    assert (shown, stop.stopped) == (expected, stopped)


def test_a_stop_string_never_shows_its_beginning() -> None:
    stop = StopStrings(["END"])
    assert stop.feed("abE") == "ab"
    assert stop.feed("N") == ""
    assert stop.feed("x") == "ENx"
    assert stop.feed("END and more") == ""
    assert stop.stopped
    assert stop.feed("after") == stop.finish() == ""


def test_tokens_of_one_chunk_are_read_as_tokens_that_come_alone(tokenizer: Any) -> None:
    ids = tokenizer.encode("abcdefgh😀 done", add_special_tokens=False)
    for size in range(1, len(ids) + 1):
        text = AnswerText(tokenizer, stop=(), has_tools=False)
        shown = "".join(text.feed(ids[start : start + size]).text for start in range(0, len(ids), size))
        assert shown + text.finish().text == "abcdefgh😀 done"


def test_tool_calls_are_read_only_where_there_are_tools() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for has_tools, reason in [(True, FinishReason.TOOL_CALLS), (False, FinishReason.STOP)]:
        answer = AnswerText(ByteTokenizer(), stop=(), has_tools=has_tools)
        fed, last = answer.feed(text.encode()), answer.finish()
        assert fed.text + last.text == ("" if has_tools else text)
        assert len(fed.tool_calls + last.tool_calls) == int(has_tools)
        assert answer.finish_reason(FinishReason.STOP) is reason
