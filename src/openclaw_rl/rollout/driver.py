"""The driver: the process that makes rollouts of tasks (`rollout.tasks`), as the user's own code says how.

It is a client of the gateway, and all that it has to remember is in the record. It may be killed anywhere: a rollout
that has ended is not made again, and one that was going on is begun anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence

from openclaw_rl.config import ApiKey, Config
from openclaw_rl.rollout.extension_contracts import GenerateFunction, RolloutFunction, RolloutGroup, Task
from openclaw_rl.rollout.extension_loading import ROLLOUT_OPTION, load_generate, load_rollout
from openclaw_rl.rollout.policy_client import Gateway
from openclaw_rl.rollout.runner import RolloutRunner
from openclaw_rl.rollout.tasks import read_tasks
from openclaw_rl.store import Store
from openclaw_rl.store.outage import STORE_ERRORS, Patience, outage_of
from openclaw_rl.store.rollouts import RolloutCounts
from openclaw_rl.supervision.bars import rollout_words
from openclaw_rl.supervision.ports import base_url
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.types import LoopName

logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.5
STOP_LOOK_S = 0.1


def run(config: Config, stop: threading.Event) -> None:
    """Make the rollouts that are missing; then wait until `stop` is set.

    Raises:
        ConfigError: the tasks or the user's code cannot be used.
    """
    tasks = [] if config.rollout.tasks is None else read_tasks(config.rollout.tasks)
    function, generate = load_rollout(config), load_generate(config)
    store = Store.open(config.store_path)
    try:
        Driver(config, store, stop, tasks=tasks, function=function, generate=generate).run()
    finally:
        store.close()


class Driver:
    """Puts the user's functions to work, and tells how it goes."""

    def __init__(
        self,
        config: Config,
        store: Store,
        stop: threading.Event,
        *,
        tasks: Sequence[Task],
        function: RolloutFunction,
        generate: GenerateFunction,
    ) -> None:
        self._config = config
        self._store = store
        self._stop = stop
        self._tasks = tasks
        self._function = function
        self._generate = generate
        self._reporter = LoopReporter(store, LoopName.DRIVER)
        self._patience = Patience(stop, self._reporter.waiting)
        self._done = False

    def run(self) -> None:
        """Go through the tasks; where the record cannot be used, wait, then begin as after a kill."""
        while not self._stop.is_set():
            try:
                asyncio.run(self._until_stopped())
            except STORE_ERRORS as error:
                if not self._patience.wait(error):
                    raise
            else:
                self._patience.over()

    async def _until_stopped(self) -> None:
        """All rollouts; cancelled when the process is told to stop."""
        work = asyncio.create_task(self._go_through())
        while not work.done() and not self._stop.is_set():
            await asyncio.wait({work}, timeout=STOP_LOOK_S)
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    async def _go_through(self) -> None:
        self._done = False
        interrupted = self._store.rollouts.interrupt()
        if interrupted:
            logger.info(
                "%d rollouts were cut off when the driver before this one ended; they begin anew", interrupted
            )
        gateway = self._gateway()
        runner = RolloutRunner(self._config, self._store, gateway)
        telling = asyncio.create_task(self._tell(runner, gateway))
        try:
            await self._drive(runner)
            await runner.drop_the_rest()
            self._done = True
            logger.info("all rollouts are made")
            await asyncio.Event().wait()
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            await gateway.close()

    async def _drive(self, runner: RolloutRunner) -> None:
        groups = self._function(self._tasks, self._generate, runner)
        async with contextlib.aclosing(groups):  # type: ignore[type-var]
            async for group in groups:
                if not isinstance(group, RolloutGroup):
                    raise TypeError(f"{ROLLOUT_OPTION}: yielded {type(group).__name__}, not a RolloutGroup")
                await runner.close(group)

    def _gateway(self) -> Gateway:
        serving = self._config.serving
        return Gateway(
            f"{base_url(serving.host, serving.port)}/v1",
            key=_key(serving.api_keys),
            model=self._config.model.served_name,
            answer_timeout_s=serving.request_timeout_s + serving.engine_wait_s,
        )

    # --- telling ---------------------------------------------------------------------------------------------

    async def _tell(self, runner: RolloutRunner, gateway: Gateway) -> None:
        """The heartbeat. It stops where the user's code blocks the event loop, and `status` then says so."""
        while True:
            try:
                counts = await asyncio.to_thread(self._store.rollouts.counts)
            except STORE_ERRORS as error:
                if outage_of(error) is None:
                    raise
            else:
                await asyncio.to_thread(self._say, counts, runner, gateway)
            await asyncio.sleep(HEARTBEAT_S)

    def _say(self, counts: RolloutCounts, runner: RolloutRunner, gateway: Gateway) -> None:
        wanted = len(self._tasks) * self._config.rollout.passes or None
        details = {**runner.details(), "groups_wanted": wanted}
        progress = rollout_words(counts.rollouts, counts.groups, wanted, drawn=False)
        wait = "nothing more" if self._done else gateway.waiting_for or runner.waiting_for
        if wait is None:
            self._reporter.working(f"making rollouts: {progress}", **details)
        else:
            self._reporter.waiting(f"{wait}; {progress}", **details)


def _key(keys: Sequence[ApiKey]) -> str | None:
    """The key that rollouts are made with: the first that is trained on; None where the gateway asks for none."""
    chosen = next((key for key in keys if key.train), None)
    return None if chosen is None else chosen.key.get_secret_value()
