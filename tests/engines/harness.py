"""A real engine as a process, for `contract.py`: started, published to, killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from openclaw_rl.config import Config
from openclaw_rl.config_render import write_private_json
from openclaw_rl.models import load_causal_lm, load_tokenizer
from openclaw_rl.policy_files import ADAPTER_DIR, MODEL_DIR, WeightsKind, weights_of, write_manifest
from openclaw_rl.serving.engines.factory import connect
from openclaw_rl.serving.engines.protocol import (
    ChatRequest,
    Engine,
    EngineError,
    EngineHealth,
    EngineUnavailable,
    Finished,
    PromptRead,
    TokensDrawn,
)
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.serving.gateway.server import serve
from openclaw_rl.store import Store
from openclaw_rl.store.versions import insert_version
from openclaw_rl.supervision.state import child_config_path
from openclaw_rl.types import PolicyVersion, VersionState
from tests.engines.support import plain_logprobs, plain_model, write_adapter

T = TypeVar("T")
SCENARIO_S = 800.0
"""The deadline of one scenario; an engine that hangs fails its test, not the whole run."""


BASE = PolicyVersion(version=0, state=VersionState.SERVING, path=None, step=0, created_at=0.0)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far log-probabilities (nats) may differ, and why a bound is what it is.

    `transformers`: from Transformers in fp32 on the same ids. `same`: from the engine's own, asked once more, by
    scoring or by generating. `shows`: how far an adapter of `adapter_scale` takes one of them at least, so that its
    absence would be noticed.
    """

    transformers: float
    same: float
    shows: float
    adapter_scale: float
    why: str


FP32 = Bounds(
    transformers=1e-3,
    same=1e-3,
    shows=1e-2,
    adapter_scale=0.02,
    why="fp32: only the order of additions differs",
)
BF16 = Bounds(
    transformers=1.2,
    same=0.7,
    shows=2.0,
    adapter_scale=0.1,
    why="bf16 keeps 8 bits of weights and activations: measured up to 0.9 and 0.5 (0.17 and 0.08 on average)",
)


def contract_config(run_dir: Path, model: Path, **engine: Any) -> Config:
    """What the engines that are held to the contract have in common: few places, for requests and for versions, and
    a queue that is soon full. `engine`: what that section also says."""
    places = {"context_length": 512, "max_versions": 3, "max_parallel": 6, "threads": 1}
    tree = {
        "run_dir": run_dir,
        "model": {"path": str(model)},
        "engine": {**places, **engine},
        "serving": {"max_queue": 2},
    }
    return Config.model_validate(tree)


class EngineHarness:
    """One engine of one kind, as the supervisor runs it: `supervision.child engine` with a configuration.

    Another way to start an engine overrides `start`, `kill` and `stop`.
    """

    swaps_whole_models = True
    """Whether a whole model takes the other's place in mid-answer; False: it is loaded beside it, and an answer ends
    on the weights that it began with."""

    honours_seeds = True
    """Whether a seed fixes what is drawn."""

    tells_restarts = True
    """Whether its health says by itself that it was restarted; False: only the versions that it lacks then say so."""

    has_queue = True
    """Whether its adapter bounds how many requests wait; False: an upstream does that, or nobody."""

    bounds_versions = True
    """Whether a version beyond `engine.max_versions` waits for a place; False: it is loaded, and another goes when
    nobody uses it."""

    def __init__(self, config: Config, model: Path, *, bounds: Bounds = FP32, start_timeout_s: float = 240.0) -> None:
        """`model`: the Transformers directory of what `config` names; `config.run_dir` is this harness's own."""
        port = config.engine.port or free_port()
        self.config = config.model_copy(update={"engine": config.engine.model_copy(update={"port": port})})
        self.model = model
        self.bounds = bounds
        self.tokenizer: Any = load_tokenizer(model)
        self.changed = False
        """Whether the base is another model now, so that the next test needs a fresh engine."""
        self.start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._published = 0
        self._plain: dict[str | None, Any] = {}

    def repeatable(self, seed: int) -> dict[str, Any]:
        """How to draw so that an answer is as long as the last time: by a seed, else greedily."""
        return {"temperature": 1.0, "seed": seed} if self.honours_seeds else {"temperature": 0.0}

    def rendered(self, request: ChatRequest) -> tuple[int, ...]:
        """The prompt that the engine is to see: ours, where it does not render in its own way."""
        return Renderer(self.tokenizer).render(request.messages, request.tools)

    # --- the process -----------------------------------------------------------------------------------------

    def __enter__(self) -> EngineHarness:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process; return when the engine is ready."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Start the process. From the main thread: its life is tied to that of the thread that starts it."""
        run_dir = self.config.run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        write_private_json(self.config, child_config_path(run_dir))
        command = [sys.executable, "-m", "openclaw_rl.supervision.child", "engine"]
        command += ["--config", str(child_config_path(run_dir)), "--parent", str(os.getpid())]
        with (run_dir / "engine.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment())
        self.changed = False

    def await_ready(self) -> None:
        """Return when the engine is ready."""
        asyncio.run(self._until_ready())

    def environment(self) -> dict[str, str]:
        """The environment of the process: as a loop's, and on few threads."""
        return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

    def kill(self) -> None:
        """End it by SIGKILL, in the middle of whatever it does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill it and start it again, as a supervisor would."""
        self.kill()
        self.start()

    def restore(self) -> None:
        """Put the base back, which takes less than another start; start it again where it is gone."""
        if self._process is None or self._process.poll() is not None:
            self.restart()
            return
        self.run(lambda engine: engine.load_version(BASE))
        self.changed = False

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    async def _until_ready(self) -> None:
        deadline = time.monotonic() + self.start_timeout_s
        async with self.engine() as engine:
            while not await health_or_none(engine):
                self.check_alive()
                assert time.monotonic() < deadline, self.log_tail()
                await asyncio.sleep(0.1)

    def check_alive(self) -> None:
        """Fail the test, with its last words, if the process has ended by itself."""
        assert self._process is None or self._process.poll() is None, self.log_tail()

    def log_tail(self) -> str:
        """The end of what the process said."""
        return (self.config.run_dir / "engine.log").read_text(encoding="utf-8", errors="replace")[-4000:]

    # --- the adapter -----------------------------------------------------------------------------------------

    def connect(self) -> Engine:
        """A fresh adapter, for the running event loop."""
        return connect(self.config)

    @contextlib.asynccontextmanager
    async def engine(self) -> AsyncIterator[Engine]:
        """An adapter for the time of a block."""
        engine = self.connect()
        try:
            yield engine
        finally:
            await engine.close()

    def run(self, scenario: Callable[[Engine], Awaitable[T]], *, within_s: float = SCENARIO_S) -> T:
        """Run one scenario with an adapter of its own."""

        async def main() -> T:
            async with asyncio.timeout(within_s), self.engine() as engine:
                return await scenario(engine)

        return asyncio.run(main())

    @contextlib.asynccontextmanager
    async def gateway(self, store: Store, engine: Engine, **serving: Any) -> AsyncIterator[str]:
        """A gateway that serves this engine; its URL. `serving`: what is different in that section."""
        config = self.config.model_copy(
            update={"serving": self.config.serving.model_copy(update={"port": free_port(), **serving})}
        )
        stop = threading.Event()
        task = asyncio.create_task(serve(config, store, engine, stop))
        try:
            yield f"http://127.0.0.1:{config.serving.port}"
        finally:
            stop.set()
            await task

    # --- versions --------------------------------------------------------------------------------------------

    def lora(self, *, scale: float = 0.02) -> PolicyVersion:
        """A new LoRA version with random weights, as the trainer writes one; its number was never used before."""
        number = self._next()
        path = self.config.run_dir / f"step-{number}"
        write_adapter(self.model, path, seed=number, scale=scale)
        write_manifest(path / ADAPTER_DIR, {})  # the trainer's own has one, and this is what it publishes
        return _version(number, path / ADAPTER_DIR)

    @functools.cached_property
    def adapter(self) -> PolicyVersion:
        """A LoRA version for tests that need some, and not one that was never loaded; made once."""
        return self.lora(scale=self.bounds.adapter_scale)

    def full(self, *, scale: float = 0.05, broken: bool = False) -> PolicyVersion:
        """A new version of a whole model: the base with every matrix shaken by `scale` of its own deviation.

        `broken`: with numbers in the first layer that are finite themselves, and overflow in whatever is computed.
        """
        number = self._next()
        path = self.config.run_dir / f"step-{number}" / MODEL_DIR
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            model = load_causal_lm(self.model)
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.data += torch.randn_like(parameter) * parameter.data.std() * scale
            if broken:
                model.model.layers[0].mlp.down_proj.weight.data.fill_(1e38)
        model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        write_manifest(path, {})
        return _version(number, path)

    def transformers(self, version: PolicyVersion | None, stream: Stream, temperature: float = 1.0) -> list[float]:
        """What Transformers in fp32 says of a stream's tokens, of the base or of `version`."""
        return plain_logprobs(self._plain_model(version), stream.prompt, stream.ids, temperature)

    def _plain_model(self, version: PolicyVersion | None) -> Any:
        key = None if version is None else version.path
        if key not in self._plain:
            while len(self._plain) > 1:  # the base, and one other
                self._plain.pop(next(iter(self._plain)))
            self._plain[key] = _load_plain(self.model, version)
        return self._plain[key]

    def _next(self) -> int:
        self._published += 1
        return self._published


def _load_plain(model: Path, version: PolicyVersion | None) -> Any:
    if version is None:
        return plain_model(model)
    weights = weights_of(Path(version.path or ""))
    return (
        plain_model(weights.directory)
        if weights.kind is WeightsKind.FULL
        else plain_model(model, weights.directory.parent)
    )


def _version(number: int, path: Path) -> PolicyVersion:
    return PolicyVersion(version=number, state=VersionState.CANDIDATE, path=str(path), step=number, created_at=0.0)


class Stream:
    """One answer, read in the background as it comes; knows how far it is."""

    def __init__(self, engine: Engine, request: ChatRequest) -> None:
        self.prompt: tuple[int, ...] = ()
        self.drawn: list[TokensDrawn] = []
        self.finished: Finished | None = None
        self._events = engine.chat(request)
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for event in self._events:
                if isinstance(event, PromptRead):
                    self.prompt = event.prompt_ids
                elif isinstance(event, TokensDrawn):
                    self.drawn.append(event)
                else:
                    self.finished = event
                self._news.set()
        finally:
            await self._events.aclose()  # type: ignore[attr-defined]
            self._news.set()

    async def reach(self, tokens: int) -> None:
        """Wait until so many tokens are here. An answer that ended before, or failed, fails the test."""
        while len(self.ids) < tokens:
            assert not self.task.done(), f"the stream ended after {len(self.ids)} of {tokens} tokens: {self.task}"
            self._news.clear()
            await self._news.wait()

    async def end(self) -> Stream:
        """Wait for its end; an engine's error is raised."""
        await self.task
        assert self.finished is not None
        return self

    async def leave(self) -> None:
        """Close the iterator, as a client that goes away."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids so far."""
        return tuple(token for event in self.drawn for token in event.ids)

    @property
    def logprobs(self) -> tuple[float | None, ...]:
        """Their log-probabilities."""
        return tuple(logprob for event in self.drawn for logprob in event.logprobs)

    @property
    def versions(self) -> tuple[int, ...]:
        """The version that drew each."""
        return tuple(version for event in self.drawn for version in event.versions)

    @property
    def kept(self) -> tuple[tuple[int, ...] | None, ...]:
        """The kept set of each, None where it is not told."""
        return tuple(one for event in self.drawn for one in event.kept or [None] * len(event.ids))

    @property
    def text(self) -> str:
        """The visible text."""
        return "".join(event.text for event in self.drawn)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Name and arguments of each tool call."""
        merged: dict[int, tuple[str, str]] = {}
        for delta in (call for event in self.drawn for call in event.tool_calls):
            name, arguments = merged.get(delta["index"], ("", ""))
            function = delta.get("function") or {}
            merged[delta["index"]] = (
                name + (function.get("name") or ""),
                arguments + (function.get("arguments") or ""),
            )
        return [merged[index] for index in sorted(merged)]


async def answer(engine: Engine, request: ChatRequest) -> Stream:
    """One whole answer."""
    return await Stream(engine, request).end()


def assert_close(one: Sequence[float | None], other: Sequence[float | None], bound: float) -> None:
    """All there, as many, and none further apart than `bound`."""
    assert len(one) == len(other) > 0
    worst = max(
        abs(a - b) if a is not None and b is not None else float("inf") for a, b in zip(one, other, strict=True)
    )
    assert worst <= bound, f"log-probabilities differ by {worst:.2e}, more than {bound:.0e}"


async def health_or_none(engine: Engine) -> EngineHealth | None:
    """The health of an engine that is ready; None of one that is not, or not there."""
    try:
        health = await engine.health()
    except (EngineUnavailable, EngineError):
        return None
    return health if health.ready else None


async def until(condition: Callable[[], Awaitable[bool]], within_s: float) -> float:
    """Wait for something that only asking tells; how long it took."""
    began = time.monotonic()
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - over HTTP there is no event
            await asyncio.sleep(0.05)
    return time.monotonic() - began


@contextlib.contextmanager
def record(directory: Path, version: PolicyVersion | None = None) -> Iterator[Store]:
    """The store of a deployment in `directory`, in which `version` serves (None: the base)."""
    store = Store.open(directory / "store.sqlite")
    try:
        if version is not None:
            serve_version(store, version)
        yield store
    finally:
        store.close()


def serve_version(store: Store, version: PolicyVersion) -> None:
    """Put a version into service as the trainer does, without a step behind it."""
    with store._database.write() as connection:
        insert_version(connection, version)
    store.versions.serve(version.version)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
