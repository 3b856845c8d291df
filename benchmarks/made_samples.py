"""Samples written into a store as the loops before training would write them: request, turn, judgement, sample."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.models import load_tokenizer, resolve_model
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.store import Store
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.loop import load_trainer
from openclaw_rl.training.scorer import Mode
from openclaw_rl.types import (
    FinishReason,
    Judgement,
    JudgementOutcome,
    Request,
    Sample,
    SamplingParams,
    TokenRecord,
    Turn,
    TurnState,
    TurnType,
)

QUESTIONS = (
    "What is a tide?",
    "Why do leaves change colour in autumn?",
    "What does a compiler do?",
    "How do bees find flowers?",
    "What is a sonnet?",
    "Why is the sky blue?",
    "How does a lever work?",
)
ANSWERS = (
    "It is the slow rise and fall of the sea.",
    "There are many reasons. First, the days become shorter. Second, the nights grow cold.",
    "Sure! It translates source code into something that a machine can run.",
    "They follow colour and scent, and tell one another where to fly.",
    "A poem of fourteen lines.",
)
HINTS = ("Please keep it short.", "Answer in one plain sentence.", "Do not begin with a greeting.")
BEGAN = 1_700_000_000.0
"""When the first sample was made; the others follow, two at a time, so that their order is in doubt."""


def made_samples(config: Config, count: int) -> list[Sample]:
    """`count` samples with all kinds of signals, and the log-probabilities that the configured base gives them.

    They are the same each time: no clock and no chance is in them.
    """
    renderer = Renderer(load_tokenizer(resolve_model(config.model)))
    scorer = load_trainer(config, renderer).scorer
    samples = []
    for number in range(count):
        question = {"role": "user", "content": f"{QUESTIONS[number % len(QUESTIONS)]} ({number})"}
        answer = {"role": "assistant", "content": ANSWERS[number % len(ANSWERS)]}
        prompt = tuple(renderer.render((question,), ()))
        response = tuple(renderer.render((question, answer), (), generation_prompt=False))[len(prompt) :]
        sequence = TokenSequence(prompt_ids=prompt, response_ids=response, start=0)
        logprobs = tuple(scorer.score(sequence, Mode.TEACHER).logprobs.tolist())
        hints = tuple(HINTS[(number + place) % len(HINTS)] for place in range(number % 3))
        samples.append(
            Sample(
                turn_id=f"t{number:04d}",
                session_id="s",
                messages=(question,),
                tools=(),
                tokens=TokenRecord(
                    prompt_ids=prompt, response_ids=response, logprobs=logprobs, versions=(0,) * len(response)
                ),
                sampling=SamplingParams(temperature=1.0, max_tokens=len(response)),
                finish_reason=FinishReason.STOP,
                reward=None if hints and number % 5 == 0 else (1.0 if number % 4 == 1 else -1.0),
                hint=hints[0] if hints else None,
                alternatives=hints[1:],
                created_at=BEGAN + number // 2,
            )
        )
    return samples


def fill(path: Path, samples: Sequence[Sample]) -> None:
    """Write the samples into the store at `path`, new or not; they wait to be trained."""
    store = Store.open(path)
    try:
        for sample in samples:
            write(store, sample)
    finally:
        store.close()


def write(store: Store, sample: Sample) -> None:
    """One sample, with all that has to be there before it."""
    request = Request(
        turn_id=sample.turn_id,
        session_id=sample.session_id,
        key_id="benchmark",
        parent_turn_id=None,
        turn_type=TurnType.MAIN,
        messages=sample.messages,
        tools=sample.tools,
        new_messages=(),
        session_done=False,
        model="policy",
        created_at=sample.created_at,
    )
    turn = Turn(
        request=request,
        answer={"role": "assistant", "content": ""},
        tokens=sample.tokens,
        sampling=sample.sampling,
        finish_reason=sample.finish_reason,
        state=TurnState.SERVED,
        served_at=sample.created_at,
    )
    store.turns.record_request(request)
    store.turns.record_turn(turn, context_hash=f"made-{sample.turn_id}")
    store.turns.move(sample.turn_id, TurnState.AWAITING_NEXT_STATE)
    store.turns.set_next_state(sample.turn_id, "next", [{"role": "user", "content": "Hm."}])
    store.turns.record_judgement(
        Judgement(
            turn_id=sample.turn_id,
            kind="made",
            outcome=JudgementOutcome.ABSENT if sample.reward is None else JudgementOutcome.SCORED,
            score=sample.reward,
            hint=sample.hint,
            alternatives=sample.alternatives,
            prompt_version="made@1",
            latency_s=0.0,
            created_at=time.time(),
        )
    )
    store.samples.add(sample)
