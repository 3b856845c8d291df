"""`judge.kind = "classifier"`: embeddings, n-grams and plain measures of a reaction under a logistic head."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from openclaw_rl.judging.base import JudgeMisconfigured
from openclaw_rl.judging.cases import DATA, shipped_cases, user_examples
from openclaw_rl.judging.embedding import Embedder, packaged_model
from openclaw_rl.judging.features import behaviour_digest, ngrams, numbers, reaction_of
from openclaw_rl.judging.head import CLASSES, Head, head_from_json
from openclaw_rl.judging.reaction_judge import Verdict
from openclaw_rl.judging.text import head_tail

HEAD_FILE = "classifier_head.json"
WORDS_WEIGHT, FIRST_WEIGHT, NUMBERS_WEIGHT, NGRAMS_WEIGHT = 1.5, 1.0, 0.5, 1.0
"""Scales of the four groups of features: how freely the fit may use each, chosen by cross-validation."""
MAX_CHARS = 1000

Example = tuple[str, str, str]
"""Task, output, and the words that followed."""


class FeatureMaker:
    """Examples to features [N, F]: two embeddings, the numbers of `features.NUMBERS`, and known n-grams."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def dense(self, examples: Sequence[Example]) -> torch.Tensor:
        """The features that need no vocabulary, [N, 782 + numbers]."""
        reactions = [reaction_of(head_tail(words, MAX_CHARS)) for _, _, words in examples]
        whole = self._embedder.embed([reaction.words for reaction in reactions])
        first = self._embedder.embed([reaction.first for reaction in reactions])
        measures = [numbers(task, output, item) for (task, output, _), item in zip(examples, reactions, strict=True)]
        return torch.cat([whole * WORDS_WEIGHT, first * FIRST_WEIGHT, torch.tensor(measures) * NUMBERS_WEIGHT], dim=1)

    def sparse(self, examples: Sequence[Example], vocabulary: Sequence[str]) -> torch.Tensor:
        """Which n-grams of the vocabulary [V] stand in the reactions, rows of length 1 or less: [N, V]."""
        index = {term: column for column, term in enumerate(vocabulary)}
        rows = torch.zeros(len(examples), len(vocabulary))
        for row, (_, _, words) in zip(rows, examples, strict=True):
            reaction = reaction_of(head_tail(words, MAX_CHARS))
            known = [index[term] for term in ngrams(reaction.words, reaction.first) if term in index]
            row[known] = 1.0
        return rows / rows.sum(1, keepdim=True).clamp(min=1.0).sqrt() * NGRAMS_WEIGHT

    def make(self, examples: Sequence[Example], vocabulary: Sequence[str]) -> torch.Tensor:
        """All features, in the order of the head's weights."""
        return torch.cat([self.dense(examples), self.sparse(examples, vocabulary)], dim=1)


def fitted_against(model: Path) -> dict[str, str]:
    """The hashes that a head must have been fitted against: the embedding model, and the features themselves."""
    with (model / "model.safetensors").open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    return {"embedding_model": weights, "features": behaviour_digest(user_examples(shipped_cases("calibration")))}


def load_head() -> Head:
    """The head that comes with the package."""
    return head_from_json((DATA / HEAD_FILE).read_text(encoding="utf-8"))


class ClassifierScorer:
    """Reads a user's words with a 22M-parameter encoder in this process; the engine is not asked."""

    kind = "classifier"

    def __init__(self, *, head: Head | None = None, model: Path | None = None, threads: int = 1) -> None:
        """Load the encoder and check that the head was fitted to it.

        Raises:
            EmbeddingModelMissing: if the package that ships the encoder is not installed.
            JudgeMisconfigured: if the head was fitted against something else.
        """
        folder = model or packaged_model()
        self._head = head or load_head()
        present = fitted_against(folder)
        stale = sorted(name for name, value in self._head.against.items() if present.get(name) != value)
        if stale:
            raise JudgeMisconfigured(
                f"the classifier's head was fitted against another {', '.join(stale)}: "
                "run python -m openclaw_rl.judging.calibrate classifier"
            )
        torch.set_num_threads(threads)
        self._maker = FeatureMaker(Embedder(folder))

    @property
    def version(self) -> str:
        """The head's name and hash."""
        return self._head.version

    async def verdict(self, *, task: str, output: str, reaction: str) -> Verdict:
        """The likeliest of -1, 0, 1, worked out beside the event loop."""
        return await asyncio.to_thread(self.decide, task, output, reaction)

    def decide(self, task: str, output: str, reaction: str) -> Verdict:
        """The likeliest of -1, 0, 1, and its probabilities."""
        row = self._maker.make([(task, output, reaction)], self._head.vocabulary)
        probabilities = self._head.probabilities(row)[0].tolist()
        best = max(range(len(CLASSES)), key=probabilities.__getitem__)
        named = {str(label): round(value, 4) for label, value in zip(CLASSES, probabilities, strict=True)}
        return Verdict(score=CLASSES[best], details={"by": "classifier", "probabilities": named})

    async def close(self) -> None:
        """Nothing is held open."""
