"""The training process: the real parts of the training loop, put together."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

import torch

from openclaw_rl.config import Config
from openclaw_rl.models import load_causal_lm, load_tokenizer, resolve_model
from openclaw_rl.serving.engines.factory import connect
from openclaw_rl.serving.engines.protocol import Engine
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.store import Store
from openclaw_rl.store.outage import Patience, StoppedInOutage
from openclaw_rl.supervision.process import LoopReporter, ending_at_once
from openclaw_rl.training.cycle import TRAINING_STEP, TrainingLoop
from openclaw_rl.training.plain_answers import plain_answers
from openclaw_rl.training.publish import PAUSE_S, PUBLISH, EnginePublisher
from openclaw_rl.training.teacher_setup import teacher_of, teacher_prompt
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import LoopName


def run(config: Config, stop: threading.Event) -> None:
    """The training process: one copy of the base, one adapter, until `stop` is set."""
    _be_polite(config.training.threads, config.training.niceness)
    store = Store.open(config.store_path)
    try:
        with contextlib.suppress(StoppedInOutage):
            # Nothing is said meanwhile: those spans end where the one before this one was last heard of.
            Patience(stop, lambda _words: None).until_done(lambda: _close_spans(store))
        reporter = LoopReporter(store, LoopName.TRAINING)
        if not config.training.enabled:
            idle(reporter, stop)
            return
        reporter.working("loading the model")
        with ending_at_once():
            if stop.is_set():  # a moment before
                return
            renderer = Renderer(load_tokenizer(resolve_model(config.model)))
            trainer = load_trainer(config, renderer)
        publisher = EnginePublisher(
            store,
            _connector(config),
            timeout_s=config.training.publish_timeout_s,
            pause_s=PAUSE_S if config.serving.on_update == "refuse" else 0.0,
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


def _close_spans(store: Store) -> None:
    store.status.abort_spans((TRAINING_STEP, PUBLISH), LoopName.TRAINING)  # those of a killed predecessor


def idle(reporter: LoopReporter, stop: threading.Event) -> None:
    """With `training.enabled = false`: report that, and hold no model."""
    while not stop.is_set():
        reporter.waiting("nothing: training.enabled = false, answers are judged only")
        stop.wait(1.0)


def load_trainer(config: Config, renderer: Renderer | None = None) -> Trainer:
    """The configured base model with a fresh adapter; `renderer`: the model's, where it is loaded already."""
    path = resolve_model(config.model)
    tokenizer = load_tokenizer(path)
    renderer = renderer or Renderer(tokenizer)
    teacher = config.training.teacher
    return Trainer(
        config=config.training,
        model=load_causal_lm(path, config.model.dtype, config.model.device),
        base_path=str(path),
        teacher_prompt=teacher_prompt(renderer, teacher),
        full_batch=config.rollout.batch_size,
        teacher=teacher_of(config, tokenizer),
        overlap_top_k=config.overlap_top_k,
    )


def _connector(config: Config) -> Callable[[], Engine]:
    return lambda: connect(config)


def _be_polite(threads: int, niceness: int) -> None:
    """Leave the machine to whoever is talking to the policy."""
    if threads:
        torch.set_num_threads(threads)
    os.nice(niceness)
