"""Several engines as one, in process: who answers, who is taken out, and what a version waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest

from openclaw_rl.serving.engines.protocol import (
    ChatRequest,
    Engine,
    EngineCapabilities,
    EngineError,
    EngineHealth,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
    PromptRead,
    ScoreRequest,
    ScoreResult,
    TokensDrawn,
    UnknownVersion,
)
from openclaw_rl.serving.engines.replicas import engine as replicas
from openclaw_rl.serving.engines.replicas.drains import DrainList
from openclaw_rl.serving.engines.replicas.engine import ReplicaLost, ReplicatedEngine
from openclaw_rl.serving.engines.replicas.replica import FAILURES_UNTIL_LOST
from openclaw_rl.serving.engines.replicas.routing import preference
from openclaw_rl.types import PolicyVersion, SamplingParams, VersionState
from tests.gateway.fake_engine import FakeEngine, Said

T = TypeVar("T")
URLS = ("http://a:1", "http://b:1", "http://c:1")
Fakes = Mapping[str, FakeEngine]


def version(number: int) -> PolicyVersion:
    path, state = f"/v{number}", VersionState.CANDIDATE
    return PolicyVersion(version=number, state=state, path=path, step=number, created_at=1.0)


def using(
    body: Callable[[ReplicatedEngine, Fakes], Awaitable[T]],
    *,
    fakes: Fakes | None = None,
    rolling: bool = False,
    drains: DrainList | None = None,
    look_s: float = 5.0,
) -> T:
    engines = fakes or {url: FakeEngine() for url in URLS}

    async def main() -> T:
        engine = ReplicatedEngine(engines, rolling=rolling, drains=drains, look_s=look_s)
        await engine.health()
        try:
            return await asyncio.wait_for(body(engine, engines), 20)
        finally:
            await engine.close()

    return asyncio.run(main())


def of(session: str, number: int = 0, *, pinned: bool = False) -> ChatRequest:
    return ChatRequest(
        request_id="r",
        messages=({"role": "user", "content": "Hello there"},),
        sampling=SamplingParams(max_tokens=12),
        version=number,
        session_id=session,
        pinned=pinned,
    )


async def ask(engine: Engine, asked: ChatRequest) -> str:
    """The text of an answer."""
    return "".join([event.text async for event in engine.chat(asked) if isinstance(event, TokensDrawn)])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the tasks of the engine under test set no event
            await asyncio.sleep(0.002)


def asked(fakes: Fakes) -> dict[str, list[str]]:
    return {url: [one.session_id for one in fake.asked] for url, fake in fakes.items()}


def winner(session: str, *gone: str) -> str:
    return preference(session, [url for url in URLS if url not in gone])[0]


SESSIONS = [f"s{number}" for number in range(24)]


def test_a_session_stays_on_its_replica_and_only_those_of_a_lost_one_move() -> None:
    async def work(engine: ReplicatedEngine, fakes: Fakes) -> None:
        for session in SESSIONS * 2:
            await ask(engine, of(session))
        lost = URLS[1]
        fakes[lost].down = True
        for session in SESSIONS:
            await ask(engine, of(session))
        health = await engine.health()
        assert health.ready
        assert "away: nobody there" in {one.url: one.state for one in engine.report()}[lost]
        fakes[lost].down = False
        fakes[lost].restart()
        await engine.health()
        for session in SESSIONS:
            await ask(engine, of(session))

    fakes = {url: FakeEngine() for url in URLS}
    using(work, fakes=fakes)
    for url, sessions in asked(fakes).items():
        own = [session for session in SESSIONS if winner(session) == url]
        moved = [session for session in SESSIONS if winner(session, URLS[1]) == url]
        assert own
        assert sessions == [*own, *own, *(moved if url != URLS[1] else []), *own]


def test_a_request_that_has_drawn_no_token_goes_to_the_next() -> None:
    def say(asked: ChatRequest) -> Said:
        return Said(text="hello")

    def refuse(asked: ChatRequest) -> Said:
        return Said(text="", error=EngineUnavailable("gone"))  # after the prompt was read

    first = winner("s")
    fakes = {url: FakeEngine(say=refuse if url == first else say) for url in URLS}

    async def work(engine: ReplicatedEngine, _: Fakes) -> list[object]:
        return [event async for event in engine.chat(of("s"))]

    events = using(work, fakes=fakes)
    assert [type(event) for event in events].count(PromptRead) == 1
    assert len(fakes[first].asked) == 1
    assert len(fakes[winner("s", first)].asked) == 1


def test_a_request_that_has_drawn_tokens_fails_clearly_and_the_replica_is_out() -> None:
    first = winner("s")
    fakes = {url: FakeEngine() for url in URLS}
    fakes[first].say = lambda _: Said(text="two words", error=EngineUnavailable("gone"))

    async def work(engine: ReplicatedEngine, _: Fakes) -> str:
        with pytest.raises(ReplicaLost) as lost:
            await ask(engine, of("s"))
        assert not isinstance(lost.value, EngineUnavailable), "the gateway must not doubt the others"
        return await ask(engine, of("s"))

    assert using(work, fakes=fakes) == "You said: Hello there"
    assert len(fakes[winner("s", first)].asked) == 1


def test_errors_that_are_the_requests_own_are_passed_on() -> None:
    fakes = {url: FakeEngine(say=lambda _: Said(first_error=EngineOverloaded("full"))) for url in URLS}

    async def work(engine: ReplicatedEngine, _: Fakes) -> None:
        with pytest.raises(EngineOverloaded):
            await ask(engine, of("s"))

    using(work, fakes=fakes)
    assert sum(len(fake.asked) for fake in fakes.values()) == 1


def test_nobody_there_is_unavailable_and_says_why() -> None:
    async def work(engine: ReplicatedEngine, fakes: Fakes) -> None:
        for fake in fakes.values():
            fake.down = True
        with pytest.raises(EngineUnavailable, match="http://a:1: away: nobody there; http://b:1"):
            await ask(engine, of("s"))
        with pytest.raises(EngineUnavailable):
            await engine.health()

    using(work)


class Hanging(FakeEngine):
    """Says a word, and nothing more, not even how it is."""

    hangs = False

    async def health(self) -> EngineHealth:
        if self.hangs:
            await asyncio.sleep(60)
        return await super().health()


def test_a_replica_that_hangs_is_found_out_and_its_answers_end() -> None:
    fakes = {url: Hanging(say=lambda _: Said(text="one " * 40, pause_s=0.05)) for url in URLS}

    async def work(engine: ReplicatedEngine, _: Fakes) -> None:
        asking = asyncio.create_task(ask(engine, of("s")))
        other = next(session for session in SESSIONS if winner(session) != winner("s"))
        going_on = asyncio.create_task(ask(engine, of(other)))
        await asyncio.sleep(0.12)
        fakes[winner("s")].hangs = True
        for _attempt in range(FAILURES_UNTIL_LOST):
            await engine.health()
        with pytest.raises(ReplicaLost):
            await asking
        assert (await going_on) == "one " * 40
        fakes[winner("s")].hangs = False

    using(work, fakes=fakes, look_s=0.2)


# --- versions ----------------------------------------------------------------------------------------------


def test_a_version_is_loaded_when_every_healthy_replica_has_it_and_one_that_returns_gets_it_first() -> None:
    async def work(engine: ReplicatedEngine, fakes: Fakes) -> None:
        away = fakes[URLS[0]]
        away.down = True
        await engine.health()
        await engine.load_version(version(1))
        assert [fake.loads for fake in fakes.values()] == [[], [1], [1]]
        assert (await engine.health()).loaded_versions == (0, 1)
        away.down = False
        asks = [asyncio.create_task(ask(engine, of(session, 1))) for session in SESSIONS]
        await asyncio.gather(*asks)
        assert not away.asked
        await engine.health()
        await until(lambda: away.loads == [1])
        await engine.health()
        for session in SESSIONS:
            await ask(engine, of(session, 1))
        assert away.asked
        away.restart()
        with pytest.raises(UnknownVersion):
            await ask(FakeEngine(), of("s", 1))
        for session in SESSIONS:
            await ask(engine, of(session, 1))
        await until(lambda: away.loads == [1, 1])

    using(work)


class HangingInLoad(Hanging):
    """Hangs from the moment on in which it is told to load."""

    async def load_version(self, version: PolicyVersion) -> None:
        self.hangs = True
        await asyncio.sleep(60)


@pytest.mark.parametrize("rolling", [False, True])
def test_a_replica_that_hangs_in_a_load_holds_up_neither_the_others_nor_its_sessions(
    rolling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "LOOK_ON_S", 0.05)
    fakes: Fakes = {url: HangingInLoad() if url == URLS[0] else FakeEngine() for url in URLS}

    async def work(engine: ReplicatedEngine, _: Fakes) -> None:
        async with asyncio.timeout(5):
            await engine.load_version(version(1))
        assert (await engine.health()).loaded_versions == (0, 1)
        assert engine.report()[0].state.startswith("away")
        for session in SESSIONS:
            await ask(engine, of(session, 1))

    using(work, fakes=fakes, rolling=rolling, look_s=0.1)
    assert not fakes[URLS[0]].asked


class SlowToTell(FakeEngine):
    """Says how it was a while ago."""

    telling: asyncio.Event | None = None

    async def health(self) -> EngineHealth:
        then = await super().health()
        if self.telling is not None:
            self.telling.set()
            await asyncio.sleep(0.05)
        return then


def test_what_was_loaded_during_a_look_is_not_lost_by_its_older_answer() -> None:
    fakes = {url: SlowToTell() for url in URLS}

    async def work(engine: ReplicatedEngine, _: Fakes) -> None:
        for fake in fakes.values():
            fake.telling = asyncio.Event()
        looking = asyncio.create_task(engine.health())
        for fake in fakes.values():
            await asyncio.wait_for(fake.telling.wait(), 5) if fake.telling else None
        await engine.load_version(version(1))
        await looking
        assert [one.versions for one in engine.report()] == [(0, 1)] * 3

    using(work, fakes=fakes)


def test_who_gives_up_a_look_takes_it_from_nobody_else() -> None:
    fakes = {url: SlowToTell() for url in URLS}

    async def work(engine: ReplicatedEngine, _: Fakes) -> None:
        for fake in fakes.values():
            fake.telling = asyncio.Event()
        one, other = asyncio.create_task(engine.health()), asyncio.create_task(engine.health())
        await asyncio.sleep(0.01)
        one.cancel()
        assert (await other).ready

    using(work, fakes=fakes)


def test_a_version_that_no_replica_has_any_more_is_unknown_and_not_an_outage() -> None:
    async def work(engine: ReplicatedEngine, fakes: Fakes) -> None:
        await engine.load_version(version(1))
        await engine.load_version(version(2))
        for fake in fakes.values():
            fake.loaded.discard(1)  # by somebody else
        for _attempt in range(2):
            with pytest.raises(UnknownVersion, match="no replica has policy version 1"):
                await ask(engine, of("s", 1, pinned=True))
        assert {one.state for one in engine.report()} == {"ready"}, "what should serve they all have"

    using(work)


def test_a_replica_that_refuses_a_version_keeps_it_out_of_service() -> None:
    async def work(engine: ReplicatedEngine, fakes: Fakes) -> None:
        fakes[URLS[2]].refuse_load = True
        with pytest.raises(EngineError, match="broken adapter"):
            await engine.load_version(version(1))
        assert (await engine.health()).loaded_versions == (0,), "or the gateway would route to it"
        fakes[URLS[2]].refuse_load = False
        await engine.load_version(version(1))
        await engine.unload_version(1)
        assert (await engine.health()).loaded_versions == (0,)

    using(work)


def test_rolling_serves_from_the_first_on_and_says_which_version_answers() -> None:
    async def work(engine: ReplicatedEngine, fakes: Fakes) -> None:
        await ask(engine, of("before", 0))
        await engine.load_version(version(1))
        assert [fake.loads for fake in fakes.values()] == [[1], [], []]
        late = next(session for session in SESSIONS if winner(session) == URLS[2])
        events = [event async for event in engine.chat(of(late, 1))]
        assert events[0] == PromptRead(prompt_ids=(1, 2, 3), version=0)
        assert fakes[URLS[2]].asked[-1].version == 0
        named = [event async for event in engine.chat(of(late, 1, pinned=True))]
        assert named[0] == PromptRead(prompt_ids=(1, 2, 3))
        assert fakes[URLS[0]].asked[-1].version == 1
        for _ in range(2):  # one after the other
            await engine.health()
            await until(lambda: all(task.done() for task in engine._tasks.values()))
        assert [fake.loads for fake in fakes.values()] == [[1], [1], [1]]
        assert (await anext(engine.chat(of(late, 1)))) == PromptRead(prompt_ids=(1, 2, 3))

    using(work, rolling=True)


def test_rolling_too_sends_nothing_to_a_replica_that_came_back_without_the_version() -> None:
    async def work(engine: ReplicatedEngine, fakes: Fakes) -> None:
        await engine.load_version(version(1))
        for _ in range(2):
            await engine.health()
            await until(lambda: all(task.done() for task in engine._tasks.values()))
        fakes[URLS[1]].restart()
        fakes[URLS[1]].refuse_load = True
        await engine.health()
        await until(lambda: all(task.done() for task in engine._tasks.values()))
        before = len(fakes[URLS[1]].asked)
        for session in SESSIONS:
            await ask(engine, of(session, 1))
        assert len(fakes[URLS[1]].asked) == before
        assert {one.url: one.state for one in engine.report()}[URLS[1]] == "catching up"

    using(work, rolling=True)


def test_rolling_has_no_version_before_the_first(tmp_path: Path) -> None:
    """A gateway that starts beside engines of which one is late: the base is not what served before."""
    fakes = {url: FakeEngine(down=url == URLS[1]) for url in URLS}

    async def work(engine: ReplicatedEngine, _: Fakes) -> None:
        await engine.load_version(version(7))
        fakes[URLS[1]].down = False
        fakes[URLS[1]].refuse_load = True
        await engine.health()
        for session in SESSIONS:
            events = [event async for event in engine.chat(of(session, 7))]
            assert events[0] == PromptRead(prompt_ids=(1, 2, 3)), "version 7, and no other"
        assert not fakes[URLS[1]].asked
        assert {one.url: one.state for one in engine.report()}[URLS[1]] == "catching up"

    using(work, fakes=fakes, rolling=True)


def test_rolling_never_answers_with_what_was_gone_back_from() -> None:
    async def work(engine: ReplicatedEngine, fakes: Fakes) -> None:
        for number in (1, 2):
            await engine.load_version(version(number))
            for _ in range(2):
                await engine.health()
                await until(lambda: all(task.done() for task in engine._tasks.values()))
        for url in URLS[1:]:
            fakes[url].loaded.discard(1)  # it made room for another
            fakes[url].refuse_load = True
        await engine.health()
        for session in SESSIONS:
            events = [event async for event in engine.chat(of(session, 1))]
            assert events[0] == PromptRead(prompt_ids=(1, 2, 3)), "version 1, and no other"
        assert {fakes[url].asked[-1].version for url in URLS if fakes[url].asked} == {1}

    using(work, rolling=True)


# --- a base that is gone, and whole models ---------------------------------------------------------------------


@dataclass
class Swapped(FakeEngine):
    """It holds another whole model, as one did that was started for another deployment, until it is told to load."""

    swapped: bool = True

    async def load_version(self, version: PolicyVersion) -> None:
        await super().load_version(version)
        self.swapped = False

    async def health(self) -> EngineHealth:
        said = await super().health()
        return replace(said, loaded_versions=()) if self.swapped else said

    async def score(self, request: ScoreRequest) -> ScoreResult:
        if self.swapped:
            raise UnknownVersion("policy version 0 is not loaded")
        return ScoreResult(logprobs=(-1.0,))


def test_a_replica_without_its_base_is_asked_nothing_and_gets_it_back() -> None:
    fakes = {url: Swapped(swapped=url != URLS[2]) for url in URLS}

    async def work(engine: ReplicatedEngine, _: Fakes) -> None:
        for session in SESSIONS:
            await ask(engine, of(session))
        await until(lambda: all(task.done() for task in engine._tasks.values()))
        assert [fake.loads for fake in fakes.values()] == [[0], [0], []]
        assert (await engine.health()).loaded_versions == (0,)
        for session in SESSIONS:
            await ask(engine, of(session))
        assert all(fake.asked for fake in fakes.values())

    using(work, fakes=fakes)


def test_a_score_goes_on_to_another_where_one_has_let_go_of_the_version() -> None:
    fakes = {url: Swapped(swapped=False) for url in URLS}

    async def work(engine: ReplicatedEngine, _: Fakes) -> None:
        for url in URLS[:2]:
            fakes[url].swapped = fakes[url].refuse_load = True  # not looked at since
        asked = ScoreRequest(ids=(1, 2), start=1, version=0)
        assert (await engine.score(asked)).logprobs == (-1.0,)
        fakes[URLS[2]].swapped = fakes[URLS[2]].refuse_load = True
        with pytest.raises((UnknownVersion, EngineUnavailable)):
            await engine.score(asked)
        for fake in fakes.values():
            fake.swapped = False
        assert (await engine.score(asked)).logprobs == (-1.0,), "who scores looks again, for nobody else does"

    using(work, fakes=fakes)


def test_where_all_have_lost_the_base_it_is_loaded_as_any_version_is() -> None:
    fakes = {url: Swapped() for url in URLS}

    async def work(engine: ReplicatedEngine, _: Fakes) -> None:
        base = PolicyVersion(version=0, state=VersionState.SERVING, path=None, step=0, created_at=0.0)
        await engine.load_version(base)
        assert (await engine.health()).loaded_versions == (0,)

    using(work, fakes=fakes)


def test_whole_models_are_refused_where_each_would_swap_at_another_moment(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    async def work(engine: ReplicatedEngine, fakes: Fakes) -> None:
        with pytest.raises(InvalidEngineRequest, match="take no whole model"):
            await engine.load_version(replace(version(1), path=str(tmp_path)))
        assert not any(fake.loads for fake in fakes.values())

    using(work)


# --- draining ----------------------------------------------------------------------------------------------


def test_a_drained_replica_ends_what_it_has_and_catches_up_before_it_is_asked_again(tmp_path: Path) -> None:
    drains = DrainList(tmp_path)
    fakes = {url: FakeEngine(say=lambda _: Said(text="a b c d", pause_s=0.02)) for url in URLS}

    async def work(engine: ReplicatedEngine, _: Fakes) -> None:
        drained = fakes[URLS[0]]
        own = next(session for session in SESSIONS if winner(session) == URLS[0])
        under_way = asyncio.create_task(ask(engine, of(own)))
        await until(lambda: bool(drained.asked))
        DrainList(tmp_path).write(frozenset({URLS[0]}))
        await engine.health()
        state = engine.report()[0]
        assert (state.state, state.requests) == ("draining", 1)
        await ask(engine, of(own))
        assert (await under_way) == "a b c d"
        assert len(drained.asked) == 1
        await engine.load_version(version(1))
        assert drained.loads == []
        DrainList(tmp_path).write(frozenset())
        await engine.health()
        await until(lambda: drained.loads == [1])
        await engine.health()
        await ask(engine, of(own, 1))
        assert len(drained.asked) == 2

    using(work, fakes=fakes, drains=drains)


def test_a_list_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    drains = DrainList(tmp_path)
    assert drains.read() == frozenset()
    drains.write(frozenset({"a"}))
    assert drains.read() == frozenset({"a"})
    (tmp_path / "draining.json").write_text("{")
    assert drains.read() == frozenset({"a"})
    (tmp_path / "draining.json").unlink()
    assert drains.read() == frozenset()


def test_capabilities_are_what_all_of_them_have() -> None:
    less = EngineCapabilities(token_ids=True, logprobs=False, lora_versions=True, score=True, tools=True)
    engine = ReplicatedEngine({"a": FakeEngine(), "b": FakeEngine(capabilities=less)})
    assert engine.capabilities == less
