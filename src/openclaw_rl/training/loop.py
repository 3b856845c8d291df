"""The training process: the real parts of the training loop, put together."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.config import Config, TrainingConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import load_causal_lm, load_tokenizer, resolve_model
from openclaw_rl.serving.engines.factory import connect
from openclaw_rl.serving.engines.protocol import Engine, EngineCapabilities, InvalidEngineRequest
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.serving.engines.weights_check import check_sound
from openclaw_rl.store import Store
from openclaw_rl.store.outage import Patience, StoppedInOutage
from openclaw_rl.supervision.process import LoopReporter, ending_at_once, give_way
from openclaw_rl.training.cycle import TRAINING_STEP, TrainingLoop
from openclaw_rl.training.deaths import count_killed
from openclaw_rl.training.plain_answers import plain_answers
from openclaw_rl.training.publish import PAUSE_S, PUBLISH, EnginePublisher, FilesCheck
from openclaw_rl.training.teacher_setup import teacher_of, teacher_prompt
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import LoopName, PolicyVersion


def run(config: Config, stop: threading.Event) -> None:
    """The training process: one copy of the base and an adapter (or, without LoRA, two), until `stop` is set."""
    _be_polite(config.training.threads, config.trainer_niceness)
    store = Store.open(config.store_path)
    try:
        with contextlib.suppress(StoppedInOutage):
            # Nothing is said meanwhile: those spans end where the one before this one was last heard of.
            Patience(stop, lambda _words: None).until_done(lambda: _bury(store, config.training))
        reporter = LoopReporter(store, LoopName.TRAINING)
        if not config.training.enabled:
            idle(reporter, stop)
            return
        reporter.working("loading the model")
        with ending_at_once():
            if stop.is_set():  # a moment before
                return
            check_engine(config)
            renderer = Renderer(load_tokenizer(resolve_model(config.model)))
            trainer = load_trainer(config, renderer)
        publisher = EnginePublisher(
            store,
            _connector(config),
            timeout_s=config.training.publish_timeout_s,
            pause_s=PAUSE_S if config.serving.on_update == "refuse" else 0.0,
            check=files_check(config),
        )
        TrainingLoop(
            config=config,
            store=store,
            trainer=trainer,
            publisher=publisher,
            reporter=reporter,
            stop=stop,
            plain_answers=plain_answers(renderer),
        ).run()
    finally:
        store.close()


def _bury(store: Store, config: TrainingConfig) -> None:
    """End what a killed predecessor left open, and count its death."""
    store.status.abort_spans((TRAINING_STEP, PUBLISH), LoopName.TRAINING)
    count_killed(store, config)


def idle(reporter: LoopReporter, stop: threading.Event) -> None:
    """With `training.enabled = false`: report that, and hold no model."""
    while not stop.is_set():
        reporter.waiting("nothing: training.enabled = false, answers are judged only")
        stop.wait(1.0)


def load_trainer(config: Config, renderer: Renderer | None = None) -> Trainer:
    """The configured base, with a fresh adapter or (without LoRA) a frozen copy beside it.

    `renderer`: the model's, where it is loaded already.
    """
    path = resolve_model(config.model)
    tokenizer = load_tokenizer(path)

    def load() -> Any:
        return load_causal_lm(path, config.dtype, config.model.device)

    renderer = renderer or Renderer(tokenizer)
    teacher = config.training.teacher
    return Trainer(
        config=config.training,
        model=load(),
        reference=None if config.training.use_lora else load(),
        tokenizer=tokenizer,
        offload_to=config.run_dir.expanduser().resolve(),
        base_path=str(path),
        teacher_prompt=teacher_prompt(renderer, teacher),
        full_batch=config.rollout.batch_size,
        teacher=teacher_of(config, tokenizer),
        overlap_top_k=config.overlap_top_k,
    )


def check_engine(config: Config) -> None:
    """That the engine can load what this trainer makes.

    Raises:
        ConfigError: it cannot.
    """

    async def asked() -> EngineCapabilities:
        engine = connect(config)
        try:
            return engine.capabilities
        finally:
            await engine.close()

    able = asyncio.run(asked())
    if config.training.use_lora and not able.lora_versions:
        raise ConfigError(f"engine.kind = {config.engine.kind} loads no adapters: set training.use_lora = false")
    if not config.training.use_lora and not able.full_weights:
        raise ConfigError(f"engine.kind = {config.engine.kind} loads no whole models: set training.use_lora = true")


def files_check(config: Config) -> FilesCheck | None:
    """What is asked of an owner's version that the engine has no place for; None with one policy for all."""
    if not config.policies.owned:
        return None

    def check(version: PolicyVersion) -> None:
        if version.path is None:
            raise InvalidEngineRequest(f"{version.name} has no path", param="path")
        check_sound(Path(version.path))

    return check


def _connector(config: Config) -> Callable[[], Engine]:
    return lambda: connect(config)


def _be_polite(threads: int, niceness: int) -> None:
    """Leave the machine to whoever is talking to the policy."""
    if threads:
        torch.set_num_threads(threads)
    give_way(niceness)
