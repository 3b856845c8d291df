"""One answer of SGLang, from pieces to events; with a tokenizer of whole words, so that texts can be read off."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from openclaw_rl.serving.engines.embedded.answer import AnswerText
from openclaw_rl.serving.engines.protocol import ChatEvent, EngineError, Finished, TokensDrawn
from openclaw_rl.serving.engines.sglang.replies import Reply
from openclaw_rl.serving.engines.sglang.wire import Chunk, Span
from openclaw_rl.types import FinishReason

WORDS = ("<end>", "a", "b", "c", "stop", '<tool_call>{"name": "f", "arguments": {}}', "</tool_call>")
END = 0


class Words:
    def decode(self, ids: Sequence[int], **_options: bool) -> str:
        return "".join(WORDS[token] for token in ids if token != END)


def reply(
    *,
    version: int = 0,
    stop: tuple[str, ...] = (),
    tools: bool = False,
    truncated: bool = False,
    doubted: Collection[str] = (),
) -> Reply:
    return Reply(
        AnswerText(Words(), stop=stop, has_tools=tools),
        version=version,
        weights="default",
        adapted=version > 0,
        known={"default": 0, "policy-v3.aa": 3},
        doubted=doubted,
        end_tokens={END},
        truncated=truncated,
    )


def chunk(
    *ids: int,
    total: int,
    weights: str = "default",
    reason: FinishReason | None = None,
    spans: tuple[Span, ...] = (),
    logprobs: tuple[float | None, ...] | None = None,
    kept: tuple[tuple[int, ...], ...] | None = None,
) -> Chunk:
    return Chunk(
        ids=ids,
        logprobs=(-0.5,) * len(ids) if logprobs is None else logprobs,
        kept=kept,
        prompt_tokens=7,
        completion_tokens=total,
        weights=weights,
        reason=reason,
        spans=spans,
    )


def told(events: Sequence[ChatEvent]) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    drawn = [event for event in events if isinstance(event, TokensDrawn)]
    return (
        tuple(token for event in drawn for token in event.ids),
        tuple(version for event in drawn for version in event.versions),
        "".join(event.text for event in drawn),
    )


def test_tokens_come_as_they_are_drawn_with_their_version() -> None:
    one = reply(version=12)
    first = one.take(chunk(1, 2, total=2))
    assert told(first) == ((1, 2), (12, 12), "ab")
    assert not one.done
    last = one.take(chunk(3, END, total=4, reason=FinishReason.STOP))
    assert told(last) == ((3, END), (12, 12), "c")
    assert last[-1] == Finished(finish_reason=FinishReason.STOP, prompt_tokens=7, completion_tokens=4)
    assert one.done
    assert one.server_done


def test_what_the_server_drew_after_the_end_is_no_part_of_the_answer() -> None:
    """Of a stop string the server may notice the end later than we do: whoever asked wants it ended there."""
    one = reply(version=1, stop=("stop",))
    events = one.take(chunk(1, 4, 2, total=3))
    assert told(events) == ((1, 4), (1, 1), "a")
    assert events[-1] == Finished(finish_reason=FinishReason.STOP, prompt_tokens=7, completion_tokens=2)
    assert one.done
    assert not one.server_done


def test_a_tool_call_is_withheld_as_text_and_its_tokens_are_told() -> None:
    one = reply(tools=True)
    events = one.take(chunk(1, 5, 6, END, total=4, reason=FinishReason.STOP))
    assert told(events) == ((1, 5, 6, END), (0,) * 4, "a")
    (call,) = [call for event in events if isinstance(event, TokensDrawn) for call in event.tool_calls]
    assert call["function"] == {"name": "f", "arguments": "{}"}
    assert isinstance(events[-1], Finished)
    assert events[-1].finish_reason is FinishReason.TOOL_CALLS


def test_after_an_update_text_goes_on_and_versions_wait_for_the_spans() -> None:
    one = reply()
    assert told(one.take(chunk(1, total=1))) == ((1,), (0,), "a")
    assert told(one.take(chunk(2, total=2, weights="policy-v3.aa"))) == ((), (), "b"), "who drew b is not known yet"
    assert told(one.take(chunk(3, total=3, weights="policy-v3.aa"))) == ((), (), "c")
    spans = (Span(name="default", start=0, end=2), Span(name="policy-v3.aa", start=2, end=4))
    last = one.take(chunk(END, total=4, weights="policy-v3.aa", reason=FinishReason.STOP, spans=spans))
    assert told(last) == ((2, 3, END), (0, 3, 3), "")
    assert isinstance(last[-1], Finished)
    assert last[-1].completion_tokens == 4


def test_an_end_that_only_we_see_waits_for_the_spans_too() -> None:
    one = reply(stop=("stop",))
    assert told(one.take(chunk(1, 4, 2, total=3, weights="policy-v3.aa"))) == ((), (), "a")
    assert not one.done
    spans = (Span(name="policy-v3.aa", start=0, end=4),)
    last = one.take(chunk(3, total=4, weights="policy-v3.aa", reason=FinishReason.LENGTH, spans=spans))
    assert told(last) == ((1, 4), (3, 3), "")
    assert last[-1] == Finished(finish_reason=FinishReason.STOP, prompt_tokens=7, completion_tokens=2)


def test_an_answer_whose_drawer_is_not_told_is_an_error() -> None:
    one = reply()
    one.take(chunk(1, total=1, weights="policy-v3.aa"))
    with pytest.raises(EngineError, match="weights"):
        one.take(chunk(2, total=2, weights="policy-v3.aa", reason=FinishReason.LENGTH))


def logprobs(events: Sequence[ChatEvent]) -> tuple[float | None, ...]:
    return tuple(one for event in events if isinstance(event, TokensDrawn) for one in event.logprobs)


def test_an_adapters_tokens_are_nobodys_once_other_weights_lie_beneath_it() -> None:
    """They come as they are drawn all the same, and many of them without a number are no broken model."""
    one = reply(version=4)
    assert logprobs(one.take(chunk(1, total=1))) == (-0.5,)
    after = one.take(chunk(1, 2, 3, total=4, weights="policy-v9.aa"))
    assert (told(after), logprobs(after)) == (((1, 2, 3), (4, 4, 4), "abc"), (None,) * 3)
    spans = (Span(name="default", start=0, end=1), Span(name="policy-v9.aa", start=1, end=5))
    last = one.take(chunk(END, total=5, weights="policy-v9.aa", reason=FinishReason.STOP, spans=spans))
    assert (told(last), logprobs(last)) == (((END,), (4,), ""), (None,))
    assert isinstance(last[-1], Finished)


@pytest.mark.parametrize("version", [0, 4])
def test_tokens_are_nobodys_once_the_name_of_the_weights_is_doubted(version: int) -> None:
    doubted = set[str]()
    one = reply(version=version, doubted=doubted)
    assert logprobs(one.take(chunk(1, total=1))) == (-0.5,)
    doubted.add("default")
    after = one.take(chunk(2, total=2))
    assert (told(after), logprobs(after)) == (((2,), (version,), "b"), (None,))


def test_of_a_doubted_name_and_a_new_one_only_the_new_ones_tokens_are_told() -> None:
    doubted = {"default"}
    one = reply(doubted=doubted)
    one.take(chunk(1, total=1, weights="policy-v3.aa"))
    spans = (Span(name="default", start=0, end=1), Span(name="policy-v3.aa", start=1, end=2))
    last = one.take(chunk(END, total=2, weights="policy-v3.aa", reason=FinishReason.STOP, spans=spans))
    assert (told(last), logprobs(last)) == (((1, END), (0, 3), ""), (None, -0.5))


def test_kept_sets_are_told_where_they_are_known() -> None:
    one = reply(truncated=True)
    (event,) = one.take(chunk(1, 2, total=2, kept=((1, 3), (2,))))
    assert isinstance(event, TokensDrawn)
    assert event.kept == ((1, 3), (2,))
    (unknown,) = one.take(chunk(1, total=3))
    assert isinstance(unknown, TokensDrawn)
    assert unknown.kept == (None,)
    (whole,) = reply().take(chunk(1, total=1))
    assert isinstance(whole, TokensDrawn)
    assert whole.kept is None


def test_a_model_without_a_distribution_is_an_error_and_one_missing_number_is_not() -> None:
    one = reply(version=1)
    assert told(one.take(chunk(1, total=1, logprobs=(None,))))[0] == (1,)
    assert told(one.take(chunk(2, total=2)))[0] == (2,)
    one.take(chunk(1, total=3, logprobs=(None,)))
    with pytest.raises(EngineError, match="not finite"):
        one.take(chunk(1, total=4, logprobs=(None,)))


def test_an_answer_cut_off_by_others_is_told_as_such() -> None:
    last = reply(version=1).take(chunk(1, total=1, reason=FinishReason.ABORT))
    assert isinstance(last[-1], Finished)
    assert last[-1].finish_reason is FinishReason.ABORT
