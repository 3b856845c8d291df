"""A user who only blames: twenty steps of nothing but -1, and what the gate lets through.

The real model, trainer, gate, publishing and embedded engine, in one process, by the settings of a recipe. Answers
are drawn by the engine from the version in service (temperature 1), each is judged -1, and each batch is trained on.
`--baseline none` takes away what a recipe holds against such a user, a moving average of rewards; `--kl-coef 0` the
pull to the base. Printed are the gate's readings of each step, and what the worst version that served says at last.
"""

from __future__ import annotations

if __name__ == "__main__":  # run as a file: before the imports below, which want the repository on the path
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.__main__ import main

    sys.exit(main([Path(__file__).stem, *sys.argv[1:]]))

import argparse
import asyncio
import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.made_samples import write
from openclaw_rl.config import Config, LossConfig
from openclaw_rl.config_sources import load
from openclaw_rl.evaluation.questions import HELD_OUT_QUESTIONS, TRAINING_QUESTIONS
from openclaw_rl.models import load_tokenizer, resolve_model
from openclaw_rl.serving.engines.embedded.service import EmbeddedService
from openclaw_rl.serving.engines.factory import connect
from openclaw_rl.serving.engines.protocol import ChatRequest, Engine, Finished, PromptRead, TokensDrawn
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.store import Store
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.testing.engine_server import engine_server
from openclaw_rl.training.cycle import TrainingLoop
from openclaw_rl.training.loop import load_trainer
from openclaw_rl.training.plain_answers import plain_answers
from openclaw_rl.training.publish import EnginePublisher
from openclaw_rl.types import LoopName, Sample, SamplingParams, StepRecord, TokenRecord

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "combine.toml"
READINGS = (
    "kl_after", "kl_to_last", "entropy_after", "nats_below_told_base", "nats_below_base", "probe_repetition",
    "probe_drop", "probe_tokens",
)  # fmt: skip
LONGEST = 32
SPOKEN = 48
"""Tokens of the sample answers at the end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--baseline", choices=["none", "running"], help="in place of the recipe's")
    parser.add_argument("--kl-coef", type=float, help="in place of the recipe's")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--json", action="store_true", help="JSON (as all benchmarks) instead of a table")


def run(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Blame, train, and look at what served."""
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as directory:
        config = _config(Path(directory), arguments)
        service = EmbeddedService(config)
        service.load_model(arguments.threads)
        with engine_server(service) as url, _loop(_at(config, url)) as loop:
            rows = [_blamed(loop, number) for number in range(arguments.steps)]
            served = [row for row in rows if row["refused"] is None]
            worst = max(served, key=lambda row: row["readings"].get("kl_after", float("-inf")), default=None)
            spoken = {name: _speak(loop, version) for name, version in _shown(loop, worst)}
    return {
        "recipe": arguments.recipe.name,
        "baseline": config.training.loss.baseline,
        "kl_coef": config.training.loss.kl_coef,
        "steps": len(rows),
        "refused": sum(row["refused"] is not None for row in rows),
        "worst_served": worst,
        "spoken": spoken,
        "rows": rows,
    }


def table(figures: Mapping[str, Any]) -> str:
    """The readings as Markdown, then what is said."""
    lines = [f"| step | {' | '.join(READINGS)} | verdict |", "|---" * (len(READINGS) + 2) + "|"]
    for row in figures["rows"]:
        values = (row["readings"].get(name) for name in READINGS)
        shown = " | ".join("" if value is None else f"{value:.3f}" for value in values)
        lines.append(f"| {row['step']} | {shown} | {row['refused'] or 'serves'} |")
    lines += ["", *(f"{name}: {text}" for name, text in figures["spoken"].items())]
    return "\n".join([*lines, f"steps={figures['steps']} refused={figures['refused']}"])


def _config(directory: Path, arguments: argparse.Namespace) -> Config:
    flags = [
        ("--run-dir", str(directory)),
        ("--training.niceness", "0"),
        ("--training.keep-checkpoints", str(arguments.steps)),  # the worst speaks at last, however old it is by then
    ]
    if arguments.baseline is not None:
        flags.append(("--training.loss.baseline", arguments.baseline))
    if arguments.baseline == "none":  # and so there is nothing that could decay
        flags.append(("--training.loss.baseline-decay", str(LossConfig().baseline_decay)))
    if arguments.kl_coef is not None:
        flags.append(("--training.loss.kl-coef", str(arguments.kl_coef)))
    return load(arguments.recipe, {}, flags).config


def _at(config: Config, url: str) -> Config:
    engine = config.engine.model_copy(update={"port": int(url.rpartition(":")[2])})
    return config.model_copy(update={"engine": engine})


class _Parts:
    """The loop and what it was made of."""

    def __init__(self, config: Config, store: Store) -> None:
        renderer = Renderer(load_tokenizer(resolve_model(config.model)))
        self.config, self.store = config, store
        self.cycles = TrainingLoop(
            config=config,
            store=store,
            trainer=load_trainer(config, renderer),
            publisher=EnginePublisher(store, lambda: connect(config), timeout_s=config.training.publish_timeout_s),
            reporter=LoopReporter(store, LoopName.TRAINING),
            stop=threading.Event(),
            plain_answers=plain_answers(renderer),
        )


@contextlib.contextmanager
def _loop(config: Config) -> Iterator[_Parts]:
    store = Store.open(config.store_path)
    try:
        parts = _Parts(config, store)
        parts.cycles.resume()
        yield parts
    finally:
        store.close()


def _blamed(loop: _Parts, number: int) -> dict[str, Any]:
    """Draw a batch from what serves, blame it, train on it; the step's readings and the gate's verdict."""
    started = time.monotonic()
    for sample in asyncio.run(_drawn(loop, number)):
        write(loop.store, sample)
    loop.cycles.cycle()
    step: StepRecord = loop.store.samples.steps()[-1]
    version = loop.store.versions.get(step.version)
    row = {
        "step": step.step,
        "readings": {name: round(step.metrics[name], 4) for name in READINGS if name in step.metrics},
        "refused": None if version is None else version.reason,
    }
    print(f"{row} {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return row


async def _drawn(loop: _Parts, number: int) -> list[Sample]:
    version, size = loop.store.versions.serving().version, loop.config.rollout.batch_size
    texts = [TRAINING_QUESTIONS[(number * size + i) % len(TRAINING_QUESTIONS)].text for i in range(size)]
    engine = connect(loop.config)
    try:
        return list(
            await asyncio.gather(*(_one(engine, f"n{number:03d}x{i}", text, version) for i, text in enumerate(texts)))
        )
    finally:
        await engine.close()


async def _one(engine: Engine, turn_id: str, text: str, version: int, *, temperature: float = 1.0) -> Sample:
    sampling = SamplingParams(temperature=temperature, max_tokens=LONGEST if temperature else SPOKEN)
    messages = ({"role": "user", "content": text},)
    request = ChatRequest(request_id=turn_id, messages=messages, sampling=sampling, version=version)
    prompt: tuple[int, ...] = ()
    drawn: list[TokensDrawn] = []
    finished: Finished | None = None
    async for event in engine.chat(request):
        if isinstance(event, PromptRead):
            prompt = event.prompt_ids
        elif isinstance(event, TokensDrawn):
            drawn.append(event)
        else:
            finished = event
    assert finished is not None
    return Sample(
        turn_id=turn_id,
        session_id=turn_id,
        messages=messages,
        tools=(),
        tokens=TokenRecord(
            prompt_ids=prompt,
            response_ids=tuple(token for event in drawn for token in event.ids),
            logprobs=tuple(logprob for event in drawn for logprob in event.logprobs),
            versions=tuple(token for event in drawn for token in event.versions),
        ),
        sampling=sampling,
        finish_reason=finished.finish_reason,
        reward=-1.0,
        hint=None,
        created_at=time.time(),
    )


def _shown(loop: _Parts, worst: Mapping[str, Any] | None) -> Sequence[tuple[str, int]]:
    """Versions to let speak: the base, the worst that served (by KL), and the one in service."""
    found = {0: "base"}
    if worst is not None:
        found[worst["step"]] = f"worst served, policy-v{worst['step']}"
    serving = loop.store.versions.serving()
    found.setdefault(serving.version, f"in service, {serving.name}")
    return [(name, version) for version, name in found.items()]


def _speak(loop: _Parts, version: int) -> str:
    """A greedy answer to a question that was never asked."""

    async def answer() -> Sample:
        engine = connect(loop.config)
        try:
            known = loop.store.versions.get(version)
            if known is not None and known.path is not None:
                await engine.load_version(known)
            return await _one(engine, f"spoken{version}", HELD_OUT_QUESTIONS[0].text, version, temperature=0.0)
        finally:
            await engine.close()

    ids = asyncio.run(answer()).tokens.response_ids
    tokenizer = load_tokenizer(resolve_model(loop.config.model))
    return repr(tokenizer.decode(ids, skip_special_tokens=True))
