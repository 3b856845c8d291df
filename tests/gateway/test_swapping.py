"""An engine in which whole models take each other's place: what the gateway makes of having only one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    EngineHealth,
    InvalidEngineRequest,
    UnknownVersion,
)
from openclaw_rl.serving.gateway.versions import VersionKeeper
from openclaw_rl.store import Store
from openclaw_rl.types import BASE_VERSION, PolicyVersion
from tests.gateway.conftest import USER, running, wait_until
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.test_versions import ask, publish


@dataclass
class SwappingEngine(FakeEngine):
    """Holds one model. `model` None: weights that are nobody's, as somebody else has left them."""

    model: int | None = BASE_VERSION
    publishes_meanwhile: tuple[Store, int] | None = None
    """A version that is loaded and put into service while the engine is asked how it is."""

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        if request.version != self.model:
            raise UnknownVersion("not loaded", param="model")
        self.loaded.add(request.version)  # what the fake looks at
        async for event in super().chat(request):
            yield event

    async def load_version(self, version: PolicyVersion) -> None:
        if version.version != self.model:
            self.loads.append(version.version)
            self.model = version.version

    async def health(self) -> EngineHealth:
        if self.publishes_meanwhile is not None:
            store, version = self.publishes_meanwhile
            self.publishes_meanwhile, self.model = None, version
            await asyncio.to_thread(publish, store, version)
        had = () if self.model is None else (self.model,)
        return replace(await super().health(), loaded_versions=had)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "store.sqlite")
    yield store
    store.close()


def test_going_back_to_the_base_brings_it_back(tmp_path: Path) -> None:
    engine = SwappingEngine()
    with running(tmp_path / "run", engine) as gateway:
        publish(gateway.store, 1)
        wait_until(lambda: ask(gateway)[0] == "1")
        wait_until(lambda: "base" not in [model.id for model in gateway.client().models.list()])
        assert gateway.post({"model": "base", "messages": [USER]}).status_code == 404
        gateway.store.versions.roll_back(BASE_VERSION)
        wait_until(lambda: ask(gateway)[0] == "0")
        assert engine.loads == [1, 0]
        assert gateway.post({"model": "base", "messages": [USER]}).status_code == 200


def test_weights_that_somebody_left_there_are_replaced_before_anything_is_routed(store: Store) -> None:
    async def scenario() -> None:
        engine = SwappingEngine(model=None)
        keeper = VersionKeeper(store, engine, served_name="policy")
        await keeper.refresh()
        assert (keeper.current, engine.loads) == (BASE_VERSION, [BASE_VERSION])

    asyncio.run(scenario())


def test_a_version_that_was_published_during_the_look_is_not_swapped_out_again(store: Store) -> None:
    async def scenario() -> None:
        now = [0.0]
        engine = SwappingEngine()
        keeper = VersionKeeper(store, engine, served_name="policy", clock=lambda: now[0])
        await keeper.refresh()
        now[0] = 2.0
        engine.publishes_meanwhile = (store, 1)
        await keeper.refresh()
        assert (keeper.current, engine.loads) == (1, [])

    asyncio.run(scenario())


@dataclass
class UnableEngine(FakeEngine):
    """Counts how often it was told to load what it cannot."""

    tries: int = 0

    async def load_version(self, version: PolicyVersion) -> None:
        self.tries += 1
        raise InvalidEngineRequest("damaged", param="path")


def test_what_cannot_be_loaded_is_tried_once_a_second(store: Store) -> None:
    """Each try may read every file of the version."""

    async def scenario() -> None:
        now = [0.0]
        engine = UnableEngine()
        keeper = VersionKeeper(store, engine, served_name="policy", clock=lambda: now[0])
        await keeper.refresh()
        publish(store, 1)
        for _ in range(9):
            await keeper.refresh()
            now[0] += 0.25
        assert (keeper.current, engine.tries) == (BASE_VERSION, 3)

    asyncio.run(scenario())
