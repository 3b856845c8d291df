"""What a hint does to the teacher: how much likelier it makes answers in the wanted style, and how much less others.

For each style, hints that ask for it are put into questions, and the same answers are scored with and without the
hint by the trainer's own scorer: written ones that keep the style, written ones that do not, and what the policy
itself answers without a hint (greedy), which is what it would be distilled on. Nothing is trained, nobody judges.
"""

from __future__ import annotations

if __name__ == "__main__":  # run as a file: before the imports below, which want the repository on the path
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.__main__ import main

    sys.exit(main([Path(__file__).stem, *sys.argv[1:]]))

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.config import Config, ModelConfig, TeacherConfig, TrainingConfig
from openclaw_rl.judging.hints import Placement, insert_hint
from openclaw_rl.models import load_tokenizer, resolve_model
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.loop import load_trainer
from openclaw_rl.training.scorer import Mode, Scorer
from openclaw_rl.types import Message

OWN_TOKENS = 40
"""How much of its own answers the policy writes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """Hints that ask for a style, and for each question an answer that keeps it and one that does not."""

    name: str
    hints: tuple[str, ...]
    answers: Mapping[str, tuple[str, str]]


STYLES = (
    Style(
        name="one short sentence",
        hints=("Please keep it to one short sentence.", "Answer in one short plain sentence, with no list."),
        answers={
            "What is a tide?": (
                "A tide is the slow rise and fall of the sea.",
                "Tides are a fascinating natural phenomenon. They are caused by the gravitational pull of the moon "
                "and the sun on the Earth's oceans. There are several types:\n\n1. Spring tides\n2. Neap tides",
            ),
            "Why do leaves change colour in autumn?": (
                "Leaves lose their green and show the colours beneath it.",
                "There are many reasons why leaves change colour in autumn. First, the days become shorter. Second, "
                "the temperature drops. Third, the tree stops producing chlorophyll, which is the green pigment.",
            ),
            "What does a compiler do?": (
                "A compiler turns source code into a program that a machine can run.",
                "A compiler is a special kind of software. Here is what it does:\n\n- It reads the source code\n- It "
                "checks the code for errors\n- It translates the code into machine language",
            ),
        },
    ),
    Style(
        name="friendly opening",
        hints=(
            'Start with a friendly phrase such as "Great question!"',
            "Be warm: praise the question before you answer.",
        ),
        answers={
            "What is a tide?": (
                "Great question! A tide is the rise and fall of the sea.",
                "A tide is the rise and fall of the sea.",
            ),
            "Why do leaves change colour in autumn?": (
                "What a lovely question! Leaves lose their green and show the colours beneath it.",
                "Leaves lose their green and show the colours beneath it.",
            ),
            "What does a compiler do?": (
                "Good question! A compiler turns source code into a program that a machine can run.",
                "A compiler turns source code into a program that a machine can run.",
            ),
        },
    ),
    Style(
        name="numbered list",
        hints=("Answer as a numbered list.", "Please write a list with the numbers 1, 2 and 3."),
        answers={
            "What is a tide?": (
                "1. The sea rises.\n2. The sea falls.\n3. The moon pulls it.",
                "The sea rises and falls because the moon pulls it.",
            ),
            "Why do leaves change colour in autumn?": (
                "1. The days get short.\n2. The green fades.\n3. Other colours show.",
                "The days get short, the green fades and other colours show.",
            ),
            "What does a compiler do?": (
                "1. It reads the code.\n2. It checks the code.\n3. It writes a program.",
                "It reads the code, checks it and writes a program.",
            ),
        },
    ),
    Style(
        name="in French",
        hints=("Answer in French.", "Please reply in the French language."),
        answers={
            "What is a tide?": (
                "La marée est le mouvement de la mer qui monte et qui descend.",
                "The tide is the movement of the sea that rises and falls.",
            ),
            "Why do leaves change colour in autumn?": (
                "Les feuilles perdent leur couleur verte parce que les jours sont courts.",
                "The leaves lose their green colour because the days are short.",
            ),
            "What does a compiler do?": (
                "Un compilateur traduit le code source en un programme.",
                "A compiler translates source code into a program.",
            ),
        },
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--model-path", default=ModelConfig().path)
    parser.add_argument("--placement", choices=("user", "system"), default="user", help="where the hint is put in")
    parser.add_argument("--json", action="store_true", help="figures instead of the table")


def run(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Score every answer with and without every hint; mean shifts by style."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        config = Config(
            run_dir=Path(directory),
            model=ModelConfig(path=arguments.model_path),
            training=TrainingConfig(teacher=TeacherConfig(hint_placement=arguments.placement)),
        )
        scorer = load_trainer(config).scorer
        tokenizer = load_tokenizer(resolve_model(config.model))
    renderer = Renderer(tokenizer)
    questions = sorted({question for style in STYLES for question in style.answers})
    own = {
        question: own_answer(scorer, renderer.render(_asked(question)), tokenizer.eos_token_id)
        for question in questions
    }
    styles = [_measure(style, own, scorer, renderer, tokenizer, arguments.placement) for style in STYLES]
    return {
        "model": arguments.model_path,
        "placement": arguments.placement,
        "styles": styles,
        "seconds": round(time.monotonic() - started, 1),
    }


def table(figures: Mapping[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [
        f"Shift of the log-probability by the hint, nats per token ({figures['model']}; as {figures['placement']}):",
        "",
        "| style | written in style | written out of it | difference | pairs told apart | the policy's own |",
        "|---|---|---|---|---|---|",
    ]
    for style in figures["styles"]:
        lines.append(
            f"| {style['style']} | {style['in_style']:+.3f} | {style['out_of_style']:+.3f} | "
            f"{style['in_style'] - style['out_of_style']:+.3f} | {style['told_apart']} of {style['pairs']} | "
            f"{style['own']:+.3f} |"
        )
    return "\n".join(lines)


def own_answer(scorer: Scorer, prompt: Sequence[int], end: int) -> tuple[int, ...]:
    """What the untrained policy answers, greedy, at most OWN_TOKENS tokens; by the scorer, a token at a time."""
    answer: list[int] = []
    while len(answer) < OWN_TOKENS and end not in answer:
        read = TokenSequence(prompt_ids=(*prompt, *answer), response_ids=(end,), start=0)
        with torch.no_grad():
            likeliest = scorer.score(read, Mode.TEACHER, top_k=1).top_ids
        assert likeliest is not None
        answer.append(int(likeliest))
    return tuple(answer)


def _asked(question: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": question},)


def _measure(
    style: Style,
    own: Mapping[str, Sequence[int]],
    scorer: Scorer,
    renderer: Renderer,
    tokenizer: Any,
    placement: Placement,
) -> dict[str, Any]:
    shifts: dict[str, list[float]] = {"in_style": [], "out_of_style": [], "own": []}
    for question, (keeps, breaks) in style.answers.items():
        plain = renderer.render(_asked(question))
        hinted = [renderer.render(insert_hint(_asked(question), hint, placement)) for hint in style.hints]
        written = {name: _ids(tokenizer, text) for name, text in (("in_style", keeps), ("out_of_style", breaks))}
        for name, ids in {**written, "own": own[question]}.items():
            before = _per_token(scorer, plain, ids)
            shifts[name] += [_per_token(scorer, prompt, ids) - before for prompt in hinted]
    pairs = list(zip(shifts["in_style"], shifts["out_of_style"], strict=True))
    return {
        "style": style.name,
        **{name: statistics.fmean(values) for name, values in shifts.items()},
        "told_apart": sum(one > other for one, other in pairs),
        "pairs": len(pairs),
    }


def _ids(tokenizer: Any, answer: str) -> tuple[int, ...]:
    return (*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id)


def _per_token(scorer: Scorer, prompt: Sequence[int], response: Sequence[int]) -> float:
    sequence = TokenSequence(prompt_ids=tuple(prompt), response_ids=tuple(response), start=0)
    with torch.no_grad():
        return float(scorer.score(sequence, Mode.TEACHER).logprobs.mean())
