"""The engine's process where the engine is an upstream: nothing is started, it watches and tells `status`.

It asks for one token when it starts, and again when the upstream was away, to say which kind of upstream it is. What
answers tell of it later it hears from the gateway, which has them: to ask again and again would cost somebody money.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from openclaw_rl.config import Config
from openclaw_rl.serving.engines.openai.client import OpenAIEngine
from openclaw_rl.serving.engines.openai.features import Features
from openclaw_rl.serving.engines.protocol import EngineError
from openclaw_rl.store import Store
from openclaw_rl.store.outage import STORE_ERRORS
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.types import LoopName

logger = logging.getLogger(__name__)

REPORT_S = 0.5
LOOK_S = 10.0
"""How often it looks; within the deadlines of the adapter."""


def run(config: Config, stop: threading.Event) -> None:
    """Watch the upstreams of `engine.urls` until `stop` is set."""
    store = Store.open(config.store_path)
    try:
        asyncio.run(_watch(config, stop, store))
    finally:
        store.close()


async def _watch(config: Config, stop: threading.Event, store: Store) -> None:
    reporter = LoopReporter(store, LoopName.ENGINE)
    watches = [Watch(url, functools.partial(OpenAIEngine.from_config, config, url)) for url in config.engine.urls]
    tasks = [asyncio.create_task(watch.run()) for watch in watches]
    try:
        while not stop.is_set():
            told = await asyncio.to_thread(told_by_answers, store)
            seen = [(watch.host, watch.features_with(told.get(watch.url, {})), watch.problem) for watch in watches]
            await asyncio.to_thread(_report, reporter, seen)
            await asyncio.sleep(REPORT_S)
            for task in tasks:
                if task.done():
                    task.result()  # it ends by a fault of ours only
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def told_by_answers(store: Store) -> Mapping[str, Mapping[str, bool]]:
    """What answers have told of each upstream, by its URL, as the gateway last said; nothing before it has."""
    try:
        gateway = next((one for one in store.status.loops() if one.loop is LoopName.GATEWAY), None)
    except STORE_ERRORS as error:
        logger.debug("the record cannot say what the gateway has heard (%s)", type(error).__name__)
        return {}
    return {} if gateway is None else gateway.details.get("upstreams", {})


def _report(reporter: LoopReporter, seen: Sequence[tuple[str, Features | None, str]]) -> None:
    words, waits = sentence(seen)
    details: Mapping[str, bool | None] = {host: None if found is None else found.trainable for host, found, _ in seen}
    if waits:
        reporter.waiting(f"an upstream ({words})", trainable=details)
    else:
        reporter.working(words, trainable=details)


def sentence(seen: Sequence[tuple[str, Features | None, str]]) -> tuple[str, bool]:
    """What is to be said of the upstreams (host, what was found, problem), and whether one of them is waited for."""
    away = [f"{host}: {problem}" for host, _, problem in seen if problem]
    if away:
        return "; ".join(away), True
    return "; ".join(f"{host}: {'asking it' if found is None else found.words()}" for host, found, _ in seen), False


class Watch:
    """Looks after one upstream."""

    def __init__(self, url: str, connect: Callable[[], OpenAIEngine]) -> None:
        self.url = url
        self.host = urlsplit(url).netloc
        self._connect = connect
        self.features: Features | None = None
        self.problem = ""

    def features_with(self, told: Mapping[str, bool]) -> Features | None:
        """What was found by asking, corrected by what answers have told since; None before it was asked."""
        return None if self.features is None else replace(self.features, **told)

    async def run(self) -> None:
        """Look until cancelled: by one answer first, then at its list of models."""
        engine = self._connect()
        try:
            while True:
                await self._look(engine)
                await asyncio.sleep(LOOK_S)
        finally:
            await engine.close()

    async def _look(self, engine: OpenAIEngine) -> None:
        try:
            if self.features is None:
                self.features = await engine.probe()
                logger.info("%s: %s", self.host, self.features.words())
            else:
                await engine.health()
        except EngineError as error:
            if not self.problem:
                logger.warning("%s: %s", self.host, error)
            self.problem, self.features = str(error), None
        else:
            self.problem = ""
