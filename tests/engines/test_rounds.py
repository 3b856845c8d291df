"""What a round reads: a token of every answer, and a piece of what waits."""

from __future__ import annotations

import pytest

from openclaw_rl.serving.engines.embedded.cache import KvShape, SlotPool
from openclaw_rl.serving.engines.embedded.jobs import GenerationJob, Job, ScoreJob
from openclaw_rl.serving.engines.embedded.scheduler import ALONE, PER_STREAM, budget, plan_round
from openclaw_rl.serving.engines.protocol import ChatRequest, ScoreRequest
from openclaw_rl.types import SamplingParams
from tests.engines.test_cache import SHAPE

CHUNK = 32


def answer(pool: SlotPool, prompt: int, read: int) -> GenerationJob:
    asked = ChatRequest(request_id="r", messages=(), sampling=SamplingParams(max_tokens=9), version=0)
    job = GenerationJob(
        asked,
        prompt=range(prompt),
        max_tokens=9,
        end_tokens=frozenset(),
        tokenizer=None,
        sink=lambda event: None,
    )
    job.slot = pool.take(job.tokens, 0, 0)
    job.slot.tokens = job.tokens[:read]
    return job


def score(pool: SlotPool, tokens: int) -> ScoreJob:
    job = ScoreJob(ScoreRequest(ids=tuple(range(tokens + 1)), start=1, version=0), sink=lambda event: None)
    job.slot = pool.take(job.tokens, 0, 0)
    return job


@pytest.fixture
def pool() -> SlotPool:
    shape: KvShape = SHAPE
    return SlotPool(shape, 8)


def test_every_answer_takes_part_in_every_round_and_a_long_prompt_with_a_piece(pool: SlotPool) -> None:
    streams: list[Job] = [answer(pool, 50, 49) for _ in range(4)]
    long = answer(pool, 4000, 0)
    plan = plan_round([long, *streams], CHUNK, scores_first=False)
    assert plan == [*((job, 1) for job in streams), (long, CHUNK + 4 * PER_STREAM)]


def test_where_no_answer_is_written_a_piece_keeps_nobody_waiting(pool: SlotPool) -> None:
    long = answer(pool, 4000, 0)
    assert plan_round([long], CHUNK, scores_first=False) == [(long, ALONE * CHUNK)]


def test_what_waits_shares_one_budget_answers_first(pool: SlotPool) -> None:
    text, first, second = score(pool, 500), answer(pool, 20, 0), answer(pool, 4000, 0)
    left = ALONE * CHUNK - 20
    assert plan_round([text, first, second], CHUNK, scores_first=False) == [(first, 20), (second, left)]
    assert plan_round([text, first, second], CHUNK, scores_first=True) == [(text, ALONE * CHUNK)]


def test_the_budget_grows_by_no_more_than_the_round_it_shares() -> None:
    assert [budget(CHUNK, streams) for streams in (1, 8, 32)] == [34, 48, 96]
