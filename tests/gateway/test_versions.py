"""Which version answers: the newest that serves and is loaded, through publishes and engine restarts."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.serving.engines.protocol import EngineHealth
from openclaw_rl.serving.gateway.errors import GatewayError
from openclaw_rl.serving.gateway.versions import VersionKeeper
from openclaw_rl.store import Store
from openclaw_rl.store.schema import versions
from openclaw_rl.types import ExclusionReason, PolicyVersion
from tests.gateway.conftest import USER, Gateway, running, wait_until
from tests.gateway.fake_engine import FakeEngine, Said


def publish(store: Store, version: int) -> None:
    """Put a version into service as the trainer does, without a step behind it."""
    with store._database.write() as connection:
        connection.execute(
            versions.insert().values(
                version=version, state="candidate", state_since=1.0, path=f"/v{version}", step=version, created_at=1.0
            )
        )
    store.versions.serve(version)


def ask(gateway: Gateway, model: str = "policy") -> tuple[str, Any]:
    response = gateway.post({"model": model, "messages": [USER]})
    assert response.status_code == 200, response.text
    return response.headers["x-policy-version"], response


def test_new_version_answers_once_it_serves(gateway: Gateway) -> None:
    assert ask(gateway)[0] == "0"
    gateway.engine.loaded.add(1)
    publish(gateway.store, 1)
    wait_until(lambda: ask(gateway)[0] == "1")
    answer = ask(gateway)[1].json()
    assert answer["system_fingerprint"] == "policy-v1"
    turn = gateway.turn(answer["id"])
    assert (turn.reason, set(turn.tokens.versions)) == (None, {1})
    assert "policy-v1" in [model.id for model in gateway.client().models.list()]


def test_version_that_is_not_loaded_is_loaded_first(gateway: Gateway) -> None:
    publish(gateway.store, 3)
    wait_until(lambda: ask(gateway)[0] == "3")
    assert gateway.engine.loads == [3]


def test_version_that_cannot_be_loaded_leaves_the_one_before(gateway: Gateway) -> None:
    gateway.engine.refuse_load = True
    publish(gateway.store, 1)
    time.sleep(0.4)
    assert ask(gateway)[0] == "0"
    gateway.engine.refuse_load = False
    wait_until(lambda: ask(gateway)[0] == "1")


def test_older_version_by_name_is_served_not_trained(gateway: Gateway) -> None:
    gateway.engine.loaded.update({1, 2})
    publish(gateway.store, 1)
    publish(gateway.store, 2)
    wait_until(lambda: ask(gateway)[0] == "2")
    version, response = ask(gateway, "policy-v1")
    assert version == "1"
    assert gateway.turn(response.json()["id"]).reason is ExclusionReason.NOT_FROM_POLICY
    _, response = ask(gateway, "policy-v2")
    assert gateway.turn(response.json()["id"]).reason is None
    assert gateway.post({"model": "policy-v9", "messages": [USER]}).status_code == 404


def test_request_in_flight_finishes_on_its_version(tmp_path: Path) -> None:
    engine = FakeEngine(say=lambda _: Said(text=" ".join("abcdefghij"), pause_s=0.08), loaded={1})
    with running(tmp_path / "run", engine) as gateway:
        with gateway.http.stream(
            "POST", "/v1/chat/completions", json={"model": "policy", "messages": [USER], "stream": True}
        ) as response:
            publish(gateway.store, 1)
            text = "".join(response.iter_text())
        assert "[DONE]" in text
        assert set(gateway.turn(response.headers["x-turn-id"]).tokens.versions) == {0}
        wait_until(lambda: gateway.http.get("/readyz").json()["version"] == 1)


def test_no_request_is_refused_while_versions_are_published(gateway: Gateway) -> None:
    stop = threading.Event()
    seen: list[str] = []

    def talk() -> None:
        client = gateway.client()
        while not stop.is_set():
            raw = client.chat.completions.with_raw_response.create(model="policy", messages=[USER])
            seen.append(raw.headers["x-policy-version"])

    thread = threading.Thread(target=talk)
    thread.start()
    for version in range(1, 5):
        gateway.engine.loaded.add(version)
        publish(gateway.store, version)
        wait_until(lambda wanted=str(version): wanted in seen)  # type: ignore[misc]
    stop.set()
    thread.join(20)
    assert seen == sorted(seen)
    assert set(seen) == {"0", "1", "2", "3", "4"} or set(seen) == {"1", "2", "3", "4"}


def test_engine_restart_reloads_before_it_routes(gateway: Gateway) -> None:
    gateway.engine.loaded.add(1)
    publish(gateway.store, 1)
    wait_until(lambda: ask(gateway)[0] == "1")
    gateway.engine.restart()
    assert ask(gateway)[0] == "1"  # at once: it waits, it is not refused
    assert gateway.engine.loads == [1]


@dataclass
class SlowToLoad(FakeEngine):
    """Loads when it is let."""

    began: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def load_version(self, version: PolicyVersion) -> None:
        self.began.set()
        await self.go_on.wait()
        await super().load_version(version)


class TestKeeperAlone:
    """The keeper without its background task, one look at a time."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Any:
        store = Store.open(tmp_path / "store.sqlite")
        yield store
        store.close()

    def test_not_ready_until_it_looked(self, store: Store) -> None:
        async def scenario() -> None:
            keeper = VersionKeeper(store, FakeEngine(), served_name="policy")
            assert not keeper.ready
            with pytest.raises(GatewayError) as caught:
                await keeper.route("policy", deadline=time.monotonic() + 0.05)
            assert caught.value.status == 503
            await keeper.refresh()
            assert keeper.ready
            assert await keeper.route("policy", deadline=0.0) == 0

        asyncio.run(scenario())

    def test_one_missed_health_check_is_not_an_outage(self, store: Store) -> None:
        async def scenario() -> None:
            now = [0.0]
            engine = FakeEngine()
            keeper = VersionKeeper(store, engine, served_name="policy", clock=lambda: now[0])
            await keeper.refresh()
            engine.down = True
            now[0] = 1.5
            await keeper.refresh()
            assert keeper.ready
            now[0] = 3.0
            await keeper.refresh()
            assert not keeper.ready
            assert "does not answer" in keeper.problem
            engine.down = False
            now[0] = 4.5
            await keeper.refresh()
            assert keeper.ready
            assert keeper.problem == ""

        asyncio.run(scenario())

    def test_suspicion_stops_routing_until_the_next_look(self, store: Store) -> None:
        async def scenario() -> None:
            keeper = VersionKeeper(store, FakeEngine(), served_name="policy")
            await keeper.refresh()
            keeper.suspect("it hung up")
            assert keeper.problem == "it hung up"
            waiting = asyncio.create_task(keeper.route("base", deadline=time.monotonic() + 5))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            await keeper.refresh()
            assert await waiting == 0

        asyncio.run(scenario())

    def test_who_is_doubted_while_another_is_loaded_goes_on_answering(self, store: Store) -> None:
        """A load may take minutes, and nobody is turned away for as long."""

        async def scenario() -> None:
            engine = SlowToLoad(loaded={1})
            publish(store, 1)
            keeper = VersionKeeper(store, engine, served_name="policy")
            await keeper.refresh()
            background = asyncio.create_task(keeper.run())
            publish(store, 2)
            async with asyncio.timeout(5):
                await engine.began.wait()
                keeper.suspect("it hung up")
                assert await keeper.route("policy", deadline=time.monotonic() + 5) == 1
                engine.go_on.set()
                while keeper.current != 2:  # noqa: ASYNC110 - the keeper tells nobody
                    await asyncio.sleep(0.01)
            background.cancel()
            assert engine.loads == [2]

        asyncio.run(scenario())

    def test_after_a_restart_nothing_answers_until_its_version_is_loaded(self, store: Store) -> None:
        async def scenario() -> None:
            now = [0.0]
            engine = SlowToLoad(loaded={1, 2})
            publish(store, 1)
            publish(store, 2)
            keeper = VersionKeeper(store, engine, served_name="policy", clock=lambda: now[0])
            await keeper.refresh()
            engine.restart()
            engine.loaded.add(1)
            now[0] = 2.0
            looking = asyncio.create_task(keeper.refresh())
            await asyncio.wait_for(engine.began.wait(), 5)
            assert (keeper.current, keeper.problem) == (None, "the engine is loading policy-v2")
            engine.go_on.set()
            await looking
            assert (keeper.current, keeper.problem) == (2, "")

        asyncio.run(scenario())

    def test_while_the_record_cannot_say_whose_a_version_is_it_is_not_to_be_had(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_number: int) -> PolicyVersion | None:
            raise OSError("the disk is away")

        async def scenario() -> None:
            now = [0.0]
            publish(store, 1)
            publish(store, 2)
            engine = FakeEngine(loaded={0, 1, 2})
            keeper = VersionKeeper(store, engine, served_name="policy", clock=lambda: now[0])
            with monkeypatch.context() as patched:
                patched.setattr(store.versions, "get", fail)
                await keeper.refresh()
                assert keeper.model_names() == ["policy", "base", "policy-v2"]  # in service, and the base: shared
                assert await keeper.route("policy", deadline=0.0) == 2
            now[0] = 2.0
            await keeper.refresh()
            assert keeper.model_names() == ["policy", "base", "policy-v1", "policy-v2"]

        asyncio.run(scenario())

    def test_what_was_loaded_during_a_look_is_not_lost_by_its_older_answer(self, store: Store) -> None:
        async def scenario() -> None:
            now = [0.0]
            engine = FakeEngine()
            keeper = VersionKeeper(store, engine, served_name="policy", clock=lambda: now[0])
            await keeper.refresh()
            now[0] = 2.0
            looking = asyncio.create_task(keeper.refresh())
            look, answered = engine.health, asyncio.Event()

            async def late() -> EngineHealth:
                before = await look()
                answered.set()
                await asyncio.sleep(0.02)
                return before

            engine.health = late  # type: ignore[method-assign]
            await asyncio.wait_for(answered.wait(), 5)
            keeper.note_loaded(7)
            await looking
            assert 7 in keeper.loaded
            now[0] = 4.0
            await keeper.refresh()
            assert 7 not in keeper.loaded

        asyncio.run(scenario())

    def test_a_fault_of_ours_in_loading_is_not_passed_over(self, store: Store) -> None:
        async def scenario() -> None:
            engine = FakeEngine()

            async def broken(version: PolicyVersion) -> None:
                raise ZeroDivisionError

            engine.load_version = broken  # type: ignore[method-assign]
            publish(store, 1)
            keeper = VersionKeeper(store, engine, served_name="policy")
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(keeper.run(), 5)

        asyncio.run(scenario())
