"""Kept sets on their way from the engine to the record: lined up with the ids, or not there at all."""

from __future__ import annotations

import json

import pytest

from openclaw_rl.serving.engines.embedded.wire import event_from_json, event_to_line
from openclaw_rl.serving.engines.protocol import EngineError, TokensDrawn
from openclaw_rl.serving.gateway.answer import AnswerInProgress


def drawn(*ids: int, kept: tuple[tuple[int, ...] | None, ...] | None = None) -> TokensDrawn:
    return TokensDrawn(ids=ids, logprobs=(-1.0,) * len(ids), versions=(0,) * len(ids), kept=kept)


def kept_of(*events: TokensDrawn) -> tuple[tuple[int, ...] | None, ...] | None:
    answer = AnswerInProgress()
    for event in events:
        answer.add(event)
    return answer.tokens().kept


def test_kept_sets_are_lined_up_with_the_ids() -> None:
    assert kept_of(drawn(1), drawn(2, 3)) is None
    assert kept_of(drawn(1, kept=((1, 5),)), drawn(2, 3, kept=((2,), None))) == ((1, 5), (2,), None)
    assert kept_of(drawn(1, 2), drawn(3, kept=((3,),))) == (None, None, (3,))


def test_kept_sets_of_another_length_are_an_error() -> None:
    with pytest.raises(EngineError, match="kept sets"):
        kept_of(drawn(1, 2, kept=((1,),)))


@pytest.mark.parametrize("event", [drawn(1), drawn(1, 2, kept=((1, 5), None))])
def test_kept_sets_cross_the_wire(event: TokensDrawn) -> None:
    assert event_from_json(json.loads(event_to_line(event))) == event


def test_engine_that_does_not_know_of_kept_sets_says_nothing() -> None:
    line = json.loads(event_to_line(drawn(1)))
    del line["kept"]
    assert event_from_json(line) == drawn(1)
