"""Fit a judge's head on `data/calibration.jsonl`, and on nothing else.

    python -m openclaw_rl.judging.calibrate classifier
    python -m openclaw_rl.judging.calibrate verdict_logits --model DIRECTORY

The result is deterministic. Each verdict is seen twice, once as written and once with the user's next question behind
it, because that is how people go on. Cross-validation keeps both forms of a row in one fold.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from openclaw_rl.judging import verdict_logits
from openclaw_rl.judging.cases import DATA, Case, shipped_cases
from openclaw_rl.judging.classifier import HEAD_FILE, Example, FeatureMaker
from openclaw_rl.judging.classifier import fitted_against as classifier_against
from openclaw_rl.judging.embedding import Embedder, packaged_model
from openclaw_rl.judging.features import ngrams, reaction_of
from openclaw_rl.judging.head import CLASSES, Head, fit_weights
from openclaw_rl.judging.local_scoring import LocalScoring
from openclaw_rl.judging.prompt_files import load_completion_prompt
from openclaw_rl.judging.text import content_text, is_cjk

log = logging.getLogger(__name__)

Prepared = tuple[list[Example], torch.Tensor, torch.Tensor]
"""Examples [N], their class indices [N], and the rows [N] that they come from."""

L2 = 3e-4
FOLDS = 5
LOGITS_STRIDE = 3
"""Verdict logits are fitted on every third row: 21 features need no more, and each row costs two model reads."""
MIN_ROWS = 2
"""An n-gram is a feature if it stands in this many rows."""
FOLLOWING = (
    "What is a lens?", "Then: how do locks work?", "Could you also tell me about tides?", "So, why is glass clear?",
    "Another thing: who built the first bridge?", "And what does a notary do?", "On to this: what is a sextant?",
    "Tell me, what is cork?", "What is ink made of?", "When did people start to farm?", "How are pencils made?",
    "Where does amber come from?", "Describe a barometer.", "Then explain what a sonnet is.",
)  # fmt: skip
FOLLOWING_ZH = ("什么是潮汐？", "玻璃是怎么做的？", "那么为什么天会黑？")


def with_following(case: Case, number: int) -> Example | None:
    """The case's words with another question behind them; None where they ask something already, or answer."""
    words = content_text(case.next_state[0])
    if case.score == 0 or "?" in words or "？" in words or case.output.rstrip().endswith("?"):
        return None
    chinese = is_cjk(words)
    questions = FOLLOWING_ZH if chinese else FOLLOWING
    stop = "" if words[-1] in ".!。！" or not words[-1].isalnum() else "。" if chinese else "."
    space = "" if chinese else " "
    return case.task, case.output, f"{words}{stop}{space}{questions[number % len(questions)]}"


def examples_of(cases: Sequence[Case]) -> Prepared:
    """Examples [N], their class indices [N], and the rows [N] that they come from."""
    examples: list[Example] = []
    rows: list[int] = []
    for number, case in enumerate(cases):
        forms = [(case.task, case.output, content_text(case.next_state[0])), with_following(case, number)]
        for form in forms:
            if form is not None:
                examples.append(form)
                rows.append(number)
    classes = torch.tensor([CLASSES.index(cases[row].score) for row in rows])
    return examples, classes, torch.tensor(rows)


def vocabulary_of(examples: Sequence[Example], rows: Sequence[int]) -> tuple[str, ...]:
    """The n-grams that stand in at least `MIN_ROWS` different rows, sorted."""
    seen: set[tuple[str, int]] = set()
    for (_, _, words), row in zip(examples, rows, strict=True):
        reaction = reaction_of(words)
        seen |= {(term, row) for term in ngrams(reaction.words, reaction.first)}
    counts = Counter(term for term, _ in seen)
    return tuple(sorted(term for term, count in counts.items() if count >= MIN_ROWS))


def cross_validated(features: torch.Tensor, classes: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The class [N] that each example gets from a head fitted without its row."""
    fold_of_row = torch.randperm(int(rows.max()) + 1, generator=torch.Generator().manual_seed(0)) % FOLDS
    folds = fold_of_row[rows]
    predicted = torch.zeros_like(classes)
    for fold in range(FOLDS):
        held = folds == fold
        weights = fit_weights(features[~held], classes[~held], l2=L2)
        predicted[held] = (features[held].double() @ weights).argmax(1)
    return predicted


def _shares(predicted: torch.Tensor, classes: torch.Tensor, chinese: torch.Tensor) -> dict[str, float]:
    right = (predicted == classes).double()
    signed = classes != CLASSES.index(0)
    groups = {"signed_en": signed & ~chinese, "signed_zh": signed & chinese, "neutral": ~signed}
    return {name: round(float(right[group].mean()), 4) for name, group in groups.items()}


def _user_cases() -> list[Case]:
    return [case for case in shipped_cases("calibration") if case.next_state[0].get("role") == "user"]


def _head(
    name: str, features: torch.Tensor, against: dict[str, str], vocabulary: tuple[str, ...], prepared: Prepared
) -> Head:
    """Fit weights to features [N, F], and say how well a fit without each fold does on it."""
    examples, classes, rows = prepared
    chinese = torch.tensor([is_cjk(words) for _, _, words in examples])
    shares = _shares(cross_validated(features, classes, rows), classes, chinese)
    weights = fit_weights(features, classes, l2=L2)
    return Head(
        name=name,
        against=against,
        vocabulary=vocabulary,
        weights=tuple(tuple(round(value, 4) for value in row) for row in weights.tolist()),
        fitted={"rows": int(rows.max()) + 1, "examples": len(examples), "l2": L2, **shares},
    )


def fit_classifier() -> Head:
    """Fit the classifier's head on the calibration rows in which a user speaks."""
    folder = packaged_model()
    maker = FeatureMaker(Embedder(folder))
    examples, classes, rows = examples_of(_user_cases())
    vocabulary = vocabulary_of(examples, rows.tolist())
    batches = [examples[start : start + 64] for start in range(0, len(examples), 64)]
    features = torch.cat([maker.make(batch, vocabulary) for batch in batches])
    return _head("classifier", features, classifier_against(folder), vocabulary, (examples, classes, rows))


async def fit_verdict_logits(model: Path, name: str) -> Head:
    """Fit the head of the verdict logits for the model in a directory, known to the configuration as `name`."""
    prompts = [load_completion_prompt(probe) for probe in verdict_logits.PROBES]
    against = verdict_logits.fitted_against(prompts, name)
    blank = Head(name="blank", against=against, vocabulary=(), weights=(), fitted={})
    scorer = verdict_logits.VerdictLogitsScorer(LocalScoring(model), model=name, head=blank)
    examples, classes, rows = examples_of(_user_cases()[::LOGITS_STRIDE])
    odds: dict[str, list[float]] = {}
    for _, _, words in examples:
        reacting = reaction_of(words).words
        if reacting not in odds:
            odds[reacting] = await scorer.odds(words)
    features = torch.tensor(
        [
            verdict_logits.features_of(task, output, words, odds[reaction_of(words).words])
            for task, output, words in examples
        ]
    )
    return _head("verdict_logits", features, against, (), (examples, classes, rows))


def main() -> None:
    """Fit a head and write it into the package's data folder."""
    parser = argparse.ArgumentParser(description="Fit a judge's head on the calibration rows.")
    parser.add_argument("judge", choices=("classifier", "verdict_logits"))
    parser.add_argument("--model", type=Path, help="verdict_logits: the base model's directory")
    parser.add_argument("--name", default="smollm2", help="verdict_logits: what model.path calls that model")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    if options.judge == "classifier":
        head, file = fit_classifier(), HEAD_FILE
    elif options.model is None:
        parser.error("verdict_logits needs --model")
    else:
        head, file = asyncio.run(fit_verdict_logits(options.model, options.name)), verdict_logits.HEAD_FILE
    Path(str(DATA / file)).write_text(head.to_json() + "\n", encoding="utf-8")
    log.info("%s over %d n-grams: %s", head.version, len(head.vocabulary), dict(head.fitted))


if __name__ == "__main__":
    main()
