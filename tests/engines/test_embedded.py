"""The embedded engine against Transformers itself, and against itself under other circumstances."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from openclaw_rl.models import load_tokenizer
from openclaw_rl.serving.engines.embedded.answer import AnswerText
from openclaw_rl.serving.engines.embedded.service import EmbeddedService
from openclaw_rl.serving.engines.protocol import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
    ScoreRequest,
    TokensDrawn,
    UnknownVersion,
)
from openclaw_rl.serving.engines.tool_parser import Parsed
from openclaw_rl.types import FinishReason, PolicyVersion
from tests.engines.support import (
    Answer,
    ask,
    config_for,
    plain_logprobs,
    plain_model,
    request,
    until,
    version_of,
    with_service,
    write_adapter,
)

LONG = "A long story about a river and a town. " * 8


def close(one: tuple[float, ...] | list[float], other: tuple[float, ...] | list[float]) -> None:
    assert len(one) == len(other) > 0
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-4


def test_requests_joining_midway_answer_as_if_alone(tiny: Path) -> None:
    texts = ["Hello there", LONG, "What is a cat?", "Name three rivers.", "And one more, beyond the parallel ones"]

    async def body(service: EmbeddedService) -> tuple[list[Answer], list[Answer]]:
        alone = [await ask(service, request(text, max_tokens=24)) for text in texts]
        tasks = []
        for text in texts:
            tasks.append(asyncio.create_task(ask(service, request(text, max_tokens=24))))
            await asyncio.sleep(0.01)
        return alone, list(await asyncio.gather(*tasks))

    for alone, together in zip(*with_service(config_for(tiny), body), strict=True):
        assert alone.ids == together.ids
        close(alone.logprobs, together.logprobs)


def test_chunks_of_any_size_give_the_same(tiny: Path) -> None:
    configs = [config_for(tiny, prefill_chunk_tokens=size) for size in (1, 7, 512)]
    answers = [with_service(config, lambda service: ask(service, request(LONG))) for config in configs]
    assert answers[0].ids == answers[1].ids == answers[2].ids
    close(answers[0].logprobs, answers[2].logprobs)
    close(answers[1].logprobs, answers[2].logprobs)


def test_prefix_reuse_changes_nothing(tiny: Path) -> None:
    async def body(service: EmbeddedService) -> list[Answer]:
        asked = [request(LONG), request(LONG + "And then?"), request(LONG), request("Hello")]
        return [await ask(service, one) for one in asked]

    first, longer, again, short = with_service(config_for(tiny), body)
    assert again.ids == first.ids
    close(again.logprobs, first.logprobs)
    for text, answer in [(LONG + "And then?", longer), ("Hello", short)]:
        fresh = with_service(config_for(tiny), lambda s, text=text: ask(s, request(text)))  # type: ignore[misc]
        assert answer.ids == fresh.ids
        close(answer.logprobs, fresh.logprobs)


@pytest.mark.parametrize("number", [0, 1])
def test_logprobs_are_those_of_a_plain_forward_pass(
    tiny: Path, adapters: dict[int, PolicyVersion], number: int
) -> None:
    async def body(service: EmbeddedService) -> Answer:
        await service.load_version(adapters[1])
        return await ask(service, request(version=number, temperature=0.7, seed=3, max_tokens=20))

    answer = with_service(config_for(tiny), body)
    adapter = Path(adapters[1].path or "") if number else None
    close(answer.logprobs, plain_logprobs(plain_model(tiny, adapter), answer.prompt, answer.ids, 0.7))
    assert set(answer.versions) == {number}


def test_an_adapter_changes_the_distribution(tiny: Path, adapters: dict[int, PolicyVersion]) -> None:
    async def body(service: EmbeddedService) -> list[Answer]:
        await service.load_version(adapters[1])
        return [await ask(service, request(version=version)) for version in (0, 1, 0)]

    base, adapted, base_again = with_service(config_for(tiny), body)
    assert base.logprobs[0] != pytest.approx(adapted.logprobs[0], abs=1e-3)
    close(base.logprobs, base_again.logprobs)


@pytest.mark.parametrize("number", [0, 1])
def test_score_equals_generation(tiny: Path, adapters: dict[int, PolicyVersion], number: int) -> None:
    async def body(service: EmbeddedService) -> tuple[Answer, tuple[float, ...], tuple[float, ...]]:
        await service.load_version(adapters[1])
        answer = await ask(service, request(LONG, version=number, temperature=0.7, seed=5, max_tokens=20))
        asked = ScoreRequest(
            ids=answer.prompt + answer.ids, start=len(answer.prompt), version=number, temperature=0.7
        )
        whole = ScoreRequest(ids=asked.ids, start=1, version=number, temperature=0.7)
        return answer, (await service.score(asked)).logprobs, (await service.score(whole)).logprobs

    answer, scored, whole = with_service(config_for(tiny), body)
    close(answer.logprobs, scored)
    assert len(whole) == len(answer.prompt + answer.ids) - 1
    close(answer.logprobs, whole[-len(answer.ids) :])


def test_greedy_logprobs_are_those_at_temperature_one(tiny: Path) -> None:
    answer = with_service(config_for(tiny), lambda service: ask(service, request()))
    close(answer.logprobs, plain_logprobs(plain_model(tiny), answer.prompt, answer.ids))


def test_a_seed_fixes_the_answer_whatever_else_is_running(tiny: Path) -> None:
    seeded = request("Tell me", temperature=1.0, seed=11, max_tokens=20)

    async def body(service: EmbeddedService) -> tuple[Answer, Answer, Answer]:
        alone = await ask(service, seeded)
        others = [ask(service, request(LONG, temperature=1.0, max_tokens=20)) for _ in range(3)]
        busy = (await asyncio.gather(ask(service, seeded), *others))[0]
        other = await ask(service, request("Tell me", temperature=1.0, seed=12, max_tokens=20))
        return alone, busy, other

    alone, busy, other = with_service(config_for(tiny), body)
    assert alone.ids == busy.ids != other.ids


def test_streams_finish_on_the_version_they_began_with(tiny: Path, adapters: dict[int, PolicyVersion]) -> None:
    async def body(service: EmbeddedService) -> tuple[Answer, Answer, Answer]:
        await service.load_version(adapters[1])
        long = request("Go on", version=1, temperature=1.0, seed=1, max_tokens=150)
        alone = await ask(service, long)
        task = asyncio.create_task(ask(service, long))
        await until(lambda: service.active == 1)
        await service.load_version(adapters[2])
        new = await ask(service, request("Go on", version=2))
        return alone, await task, new

    alone, old, new = with_service(config_for(tiny), body)
    assert old.ids == alone.ids
    close(old.logprobs, alone.logprobs)
    assert set(old.versions) == {1}
    assert set(new.versions) == {2}


def test_a_version_in_use_is_unloaded_when_its_last_request_ends(
    tiny: Path, adapters: dict[int, PolicyVersion]
) -> None:
    async def body(service: EmbeddedService) -> Answer:
        await service.load_version(adapters[1])
        events = service.chat(request("Go on", version=1, temperature=1.0, max_tokens=150, seed=1))
        await anext(events)
        await service.unload_version(1)
        assert (await service.health()).loaded_versions == (0,)
        with pytest.raises(UnknownVersion):
            await ask(service, request(version=1))
        rest = [event async for event in events if isinstance(event, TokensDrawn)]
        assert {version for event in rest for version in event.versions} == {1}
        await service.load_version(adapters[2])
        return await ask(service, request(version=2))

    answer = with_service(config_for(tiny), body)
    plain = plain_model(tiny, Path(adapters[2].path or ""))
    close(answer.logprobs, plain_logprobs(plain, answer.prompt, answer.ids))


def test_the_oldest_unused_version_makes_room(tiny: Path, adapters: dict[int, PolicyVersion]) -> None:
    async def body(service: EmbeddedService) -> None:
        await service.load_version(adapters[1])
        events = service.chat(request("Go on", version=1, temperature=1.0, max_tokens=400, seed=1))
        await anext(events)
        for number in (2, 3, 4):
            await service.load_version(adapters[number])
        assert (await service.health()).loaded_versions == (0, 1, 3, 4)
        await events.aclose()  # type: ignore[attr-defined]
        answer = await ask(service, request(version=4))
        plain = plain_model(tiny, Path(adapters[4].path or ""))
        close(answer.logprobs, plain_logprobs(plain, answer.prompt, answer.ids))

    with_service(config_for(tiny, max_versions=3), body)


def test_all_versions_in_use_is_an_overload(tiny: Path, adapters: dict[int, PolicyVersion]) -> None:
    async def body(service: EmbeddedService) -> None:
        held = []
        for number in (1, 2):
            await service.load_version(adapters[number])
            held.append(service.chat(request(version=number, temperature=1.0, max_tokens=400, seed=1)))
            await anext(held[-1])
        with pytest.raises(EngineOverloaded):
            await service.load_version(adapters[3])

    with_service(config_for(tiny, max_versions=2), body)


def test_an_adapter_of_another_rank_is_loaded_too(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    other = write_adapter(tiny, tmp_path, seed=7, rank=4, alpha=4.0)

    async def body(service: EmbeddedService) -> list[Answer]:
        for version in (adapters[1], other):
            await service.load_version(version)
        return [await ask(service, request(version=version)) for version in (1, 7)]

    for answer, path in zip(with_service(config_for(tiny), body), (adapters[1].path, tmp_path), strict=True):
        plain = plain_model(tiny, Path(path or ""))
        close(answer.logprobs, plain_logprobs(plain, answer.prompt, answer.ids))


def test_a_damaged_version_is_refused_and_leaves_no_trace(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    write_adapter(tiny, tmp_path, seed=8)
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)

    async def body(service: EmbeddedService) -> None:
        with pytest.raises(InvalidEngineRequest, match="not the file"):
            await service.load_version(version_of(tmp_path, 8))
        assert (await service.health()).loaded_versions == (0,)
        with pytest.raises(InvalidEngineRequest):
            await service.load_version(version_of(tmp_path / "nowhere", 9))

    with_service(config_for(tiny), body)


def test_a_stop_string_ends_the_answer_before_it(tiny: Path) -> None:
    async def body(service: EmbeddedService) -> tuple[Answer, Answer, str]:
        free = await ask(service, request(max_tokens=24))
        stop = free.text[8:13]
        return free, await ask(service, request(max_tokens=24, stop=(stop,))), stop

    free, stopped, stop = with_service(config_for(tiny), body)
    assert stopped.text == free.text[: free.text.index(stop)]
    assert stopped.ids == free.ids[: len(stopped.ids)]
    assert len(stopped.ids) < len(free.ids)
    assert stopped.finished.finish_reason is FinishReason.STOP
    assert stopped.finished.completion_tokens == len(stopped.ids)


def test_closing_the_iterator_frees_the_slot(tiny: Path) -> None:
    async def body(service: EmbeddedService) -> Answer:
        for _ in range(3):
            events = service.chat(request(temperature=1.0, seed=1, max_tokens=400))
            await anext(events)
            await anext(events)
            await events.aclose()  # type: ignore[attr-defined]
        answer = await ask(service, request())
        await until(lambda: service.busy == 0)
        return answer

    assert with_service(config_for(tiny, max_parallel=1), body).ids


def test_a_prompt_that_fills_the_context_is_refused_by_name(tiny: Path) -> None:
    async def body(service: EmbeddedService) -> None:
        with pytest.raises(InvalidEngineRequest) as caught:
            await ask(service, request(LONG))
        assert (caught.value.code, caught.value.param, caught.value.status) == (
            "context_length_exceeded",
            "messages",
            400,
        )

    with_service(config_for(tiny, context_length=64), body)


def test_max_tokens_is_what_the_context_leaves(tiny: Path) -> None:
    answer = with_service(config_for(tiny, context_length=48), lambda s: ask(s, request(max_tokens=400)))
    assert len(answer.prompt) + len(answer.ids) == 48
    assert answer.finished.finish_reason is FinishReason.LENGTH


def test_a_full_queue_is_an_overload(tiny: Path) -> None:
    config = config_for(tiny, max_parallel=1).model_copy()
    config = config.model_copy(update={"serving": config.serving.model_copy(update={"max_queue": 2})})

    async def body(service: EmbeddedService) -> None:
        held = []
        for _ in range(3):
            held.append(service.chat(request(temperature=1.0, seed=1, max_tokens=400)))
            await anext(held[-1])
            await until(lambda: service.active == 1)
        with pytest.raises(EngineOverloaded):
            await ask(service, request())

    with_service(config, body)


def test_whoever_finds_a_slot_does_not_wait_however_many_come_at_once(tiny: Path) -> None:
    config = config_for(tiny, max_parallel=3).model_copy()
    config = config.model_copy(update={"serving": config.serving.model_copy(update={"max_queue": 1})})

    async def body(service: EmbeddedService) -> list[Answer | BaseException]:
        asked = request(temperature=1.0, seed=1, max_tokens=400)
        return await asyncio.gather(*(ask(service, asked) for _ in range(5)), return_exceptions=True)

    came = with_service(config, body)
    assert sum(isinstance(one, EngineOverloaded) for one in came) == 1
    assert sum(isinstance(one, Answer) for one in came) == 4


def test_top_p_draws_from_the_kept_set_and_says_so(tiny: Path) -> None:
    async def body(service: EmbeddedService) -> tuple[Answer, Answer]:
        greedy = await ask(service, request())
        return greedy, await ask(service, request(temperature=1.0, top_p=1e-6, seed=1))

    greedy, narrow = with_service(config_for(tiny), body)
    assert narrow.ids == greedy.ids  # only the likeliest token is kept
    assert narrow.logprobs == (0.0,) * len(narrow.ids)
    assert narrow.kept == tuple((token,) for token in narrow.ids)
    assert greedy.kept == ()


def test_kept_sets_are_told_and_log_probabilities_are_those_among_them(tiny: Path) -> None:
    async def body(service: EmbeddedService) -> tuple[Answer, Answer]:
        cut = await ask(service, request(temperature=0.7, top_k=20, top_p=0.9, seed=3))
        return cut, await ask(service, request(temperature=1.0, top_p=1.0 - 1e-9, seed=3))

    cut, flat = with_service(config_for(tiny), body)
    assert len(cut.kept) == len(cut.ids)
    whole = plain_logprobs(plain_model(tiny), cut.prompt, cut.ids, temperature=0.7)
    for token, logprob, kept, among_all in zip(cut.ids, cut.logprobs, cut.kept, whole, strict=True):
        assert kept is not None
        assert token in kept
        assert 1 <= len(kept) <= 20
        assert logprob > among_all
    # A set of nearly the whole vocabulary is too large to be told, and the turn will be excluded.
    assert set(flat.kept) == {None}
    assert len(flat.kept) == len(flat.ids)


def test_unknown_versions_and_bad_scores_are_refused(tiny: Path) -> None:
    async def body(service: EmbeddedService) -> None:
        with pytest.raises(UnknownVersion):
            await ask(service, request(version=9))
        for ids, start in [((1, 2, 3), 0), ((1, 2, 3), 3), ((1, 10**6), 1), ((1,) * 600, 1)]:
            with pytest.raises(InvalidEngineRequest):
                await service.score(ScoreRequest(ids=ids, start=start, version=0))

    with_service(config_for(tiny), body)


def test_scores_beside_answers_are_those_of_a_score_alone(tiny: Path) -> None:
    ids = tuple(load_tokenizer(tiny).encode(LONG * 3))[:400]

    async def body(service: EmbeddedService) -> None:
        reference = (await service.score(ScoreRequest(ids=ids, start=1, version=0))).logprobs
        answers = asyncio.gather(*[ask(service, request(temperature=1.0, seed=s, max_tokens=60)) for s in range(3)])
        scores = await asyncio.gather(
            *[service.score(ScoreRequest(ids=(*ids[:-1], last), start=1, version=0)) for last in (5, 6, 7)]
        )
        await answers
        for score in scores:
            close(score.logprobs[:-1], reference[:-1])

    with_service(config_for(tiny), body)


def test_versions_share_a_pass_without_mixing(tiny: Path, adapters: dict[int, PolicyVersion]) -> None:
    async def body(service: EmbeddedService) -> tuple[list[Answer], list[Answer]]:
        for number in (1, 2, 3):
            await service.load_version(adapters[number])
        asked = [request(f"Question {n}", version=n, max_tokens=24) for n in (3, 0, 1, 2)]
        return [await ask(service, one) for one in asked], list(
            await asyncio.gather(*[ask(service, one) for one in asked])
        )

    for alone, together in zip(*with_service(config_for(tiny), body), strict=True):
        assert alone.ids == together.ids
        close(alone.logprobs, together.logprobs)


def test_a_crash_fails_every_request_and_shows_in_health(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(pieces: object) -> None:
        raise MemoryError("no more")

    async def body(service: EmbeddedService) -> None:
        events = service.chat(request(temperature=1.0, seed=1, max_tokens=400))
        await anext(events)
        await until(lambda: service.active == 1)
        monkeypatch.setattr(service.runner, "forward", broken)
        with pytest.raises(EngineError, match="MemoryError"):
            [event async for event in events]
        assert not (await service.health()).ready
        await until(service.crashed.is_set)
        with pytest.raises(EngineUnavailable):
            await ask(service, request())

    with_service(config_for(tiny), body)


def test_what_one_answer_cannot_do_ends_no_other(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = AnswerText.feed

    def broken(self: AnswerText, ids: Sequence[int]) -> Parsed:
        if self._parser is not None:
            raise ZeroDivisionError
        return feed(self, ids)

    monkeypatch.setattr(AnswerText, "feed", broken)
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}

    async def body(service: EmbeddedService) -> None:
        other = asyncio.create_task(ask(service, request(max_tokens=40)))
        with pytest.raises(EngineError, match="ZeroDivisionError"):
            await ask(service, dataclasses.replace(request(max_tokens=40), tools=(tool,)))
        assert len((await other).ids) > 0
        health = await service.health()
        assert (health.ready, health.active_requests) == (True, 0)

    with_service(config_for(tiny), body)


def test_an_adapter_without_a_distribution_fails_its_own_requests_only(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    huge = write_adapter(tiny, tmp_path, seed=9, scale=1e36)

    async def body(service: EmbeddedService) -> None:
        await service.load_version(huge)
        other = asyncio.create_task(ask(service, request(max_tokens=40)))
        with pytest.raises(EngineError, match="not finite"):
            await ask(service, request(version=9))
        assert len((await other).ids) > 0
        assert (await service.health()).ready

    with_service(config_for(tiny), body)
