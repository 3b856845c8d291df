"""The official client's streams, as they end up in the ledger."""

import asyncio
import time

import pytest

from openclaw_rl.config import ServingConfig
from openclaw_rl.evaluation.ledger import Entry, Ledger, Purpose
from openclaw_rl.evaluation.talker import Ask, OpenStreams, key_of, parse_version, talker
from tests.evaluation.fake_api import BREAK, NO_FINISH, REFUSE, FakeApi, Seen, serving


def make_ask(**values: object) -> Ask:
    defaults: dict[str, object] = {
        "purpose": Purpose.QUESTION,
        "model": "policy",
        "messages": ({"role": "user", "content": "What is a poem?"},),
        "question": "What is a poem?",
        "session": "s1",
        "interaction": 3,
        "temperature": 0.9,
        "max_tokens": 12,
        "seed": 5,
    }
    return Ask(**{**defaults, **values})  # type: ignore[arg-type]


def ask_once(answer: str, ask: Ask, delay_s: float = 0.0) -> tuple[Entry, Seen, Ledger]:
    async def go() -> tuple[Entry, Seen, Ledger]:
        ledger = Ledger()
        async with serving(FakeApi(lambda body: answer, delay_s=delay_s)) as api:
            async with talker(api.url, ledger=ledger, timeout_s=10.0) as client:
                entry = await client.ask(ask)
                assert client.streams.count == 0
            assert len(api.seen) == 1
            return entry, api.seen[0], ledger

    return asyncio.run(go())


def test_an_answer_is_entered_with_every_chunk() -> None:
    entry, seen, ledger = ask_once("A poem is verse.", make_ask(), delay_s=0.02)
    assert entry.answered
    assert list(ledger) == [entry]
    assert (entry.text, entry.finish_reason, entry.turn_id, entry.version) == ("A poem is verse.", "stop", "t0", 3)
    assert len(entry.chunk_times) == 4
    assert entry.chunk_times == sorted(entry.chunk_times)
    assert entry.opened_at is not None
    assert entry.ended_at is not None
    assert entry.sent_at <= entry.opened_at <= entry.chunk_times[0] <= entry.chunk_times[-1] <= entry.ended_at
    assert entry.chunk_times[-1] - entry.chunk_times[0] >= 0.05
    assert {key: seen.body[key] for key in ("model", "stream", "temperature", "max_tokens", "seed")} == {
        "model": "policy",
        "stream": True,
        "temperature": 0.9,
        "max_tokens": 12,
        "seed": 5,
    }
    assert seen.headers["x-session-id"] == "s1"
    assert not {"x-no-train", "x-session-done"} & set(seen.headers)


def test_headers_say_what_is_not_to_be_kept_and_when_it_is_over() -> None:
    _, seen, _ = ask_once("Yes.", make_ask(train=False, session=None, done=True))
    assert seen.headers["x-no-train"] == "1"
    assert seen.headers["x-session-done"] == "1"
    assert "x-session-id" not in seen.headers


def test_a_refusal_is_entered_and_not_tried_again() -> None:
    entry, _, ledger = ask_once(REFUSE, make_ask())
    assert entry.refused
    assert entry.status == 503
    assert (ledger.refused_requests, ledger.broken_streams, ledger.answers) == (1, 0, 0)


@pytest.mark.parametrize("fault", [BREAK, NO_FINISH])
def test_a_stream_without_its_proper_end_is_broken(fault: str) -> None:
    entry, _, ledger = ask_once(fault, make_ask())
    assert entry.broken
    assert entry.text == "half an"
    assert (ledger.refused_requests, ledger.broken_streams, ledger.answers) == (0, 1, 0)


def test_hanging_up_is_no_fault_of_the_server() -> None:
    async def go() -> Ledger:
        ledger = Ledger()
        async with (
            serving(FakeApi(lambda body: "word " * 50, delay_s=0.05)) as api,
            talker(api.url, ledger=ledger, timeout_s=10.0) as client,
        ):
            asking = asyncio.create_task(client.ask(make_ask()))
            while not (len(ledger) and next(iter(ledger)).chunk_times):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.wait({asking})
            assert asking.cancelled()
        return ledger

    ledger = asyncio.run(go())
    assert [(entry.cancelled, entry.answered) for entry in ledger] == [(True, False)]
    assert (ledger.refused_requests, ledger.broken_streams) == (0, 0)


def test_nobody_there_is_a_refusal() -> None:
    async def go() -> Entry:
        async with talker("http://127.0.0.1:9/v1", ledger=Ledger(), timeout_s=5.0) as client:
            return await client.ask(make_ask())

    assert asyncio.run(go()).refused


@pytest.mark.parametrize(
    ("header", "version"), [("policy-v12", 12), ("7", 7), ("base", 0), (None, None), ("newest", None)]
)
def test_versions_are_read_from_the_header(header: str | None, version: int | None) -> None:
    assert parse_version(header) == version


def test_a_reader_pauses_only_while_somebody_else_streams() -> None:
    async def go() -> tuple[float, float, float]:
        streams = OpenStreams()
        alone = await timed(streams.pause_while_others(5.0))
        with streams.one():
            full = await timed(streams.pause_while_others(0.15))

            async def close_soon() -> None:
                await asyncio.sleep(0.1)

            waiting = asyncio.create_task(timed(streams.pause_while_others(5.0)))
            await close_soon()
        return alone, full, await waiting

    alone, full, cut_short = asyncio.run(go())
    assert alone < 0.05
    assert 0.14 <= full < 1.0
    assert 0.09 <= cut_short < 1.0


async def timed(pause: object) -> float:
    start = time.monotonic()
    await pause  # type: ignore[misc]
    return time.monotonic() - start


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    entry, _, _ = ask_once("Yes.", make_ask())
    assert entry.answered


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ([], "none"),
        ([{"name": "ann", "key": "a1"}, {"name": "bob", "key": "b2"}], "a1"),
        ([{"name": "guest", "key": "g0", "train": False}, {"name": "ann", "key": "a1"}], "a1"),
        ([{"name": "guest", "key": "g0", "train": False}], "g0"),
    ],
)
def test_a_gateway_with_keys_is_sent_one(keys: list[dict[str, object]], sent: str) -> None:
    async def go() -> Seen:
        serving_config = ServingConfig.model_validate({"api_keys": keys})
        async with (
            serving(FakeApi(lambda body: "Yes.")) as api,
            talker(api.url, ledger=Ledger(), timeout_s=10.0, api_key=key_of(serving_config)) as client,
        ):
            assert (await client.ask(make_ask())).answered
            return api.seen[0]

    assert asyncio.run(go()).headers["authorization"] == f"Bearer {sent}"
