"""`judge.kind = "reward_model"`: a sequence classifier of Transformers that reads prompt, response and outcome."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from openclaw_rl.config import Config
from openclaw_rl.judging.base import JudgeMisconfigured
from openclaw_rl.judging.head import digest
from openclaw_rl.judging.text import shared_budget
from openclaw_rl.models import available_devices, choose_device

MAX_TOKENS = 2048
PROBABILITY = (0.0, 1.0)
_LABELS = ("Prompt: ", "\nResponse: ", "\nOutcome: ")
_HASHED_BYTES = 1 << 20


class SequenceClassifier:
    """The probability of the positive class, or the one raw number of a model with a single output."""

    def __init__(self, config: Config) -> None:
        """Load the model of `judge.model` and its tokenizer.

        Raises:
            JudgeMisconfigured: no such model, no trained classification head in it, or its classes do not fit.
        """
        path = Path(config.judge.model).expanduser()
        if not (path / "config.json").is_file():
            raise JudgeMisconfigured(f"judge.model {config.judge.model!r} is no directory with a config.json")
        self._device = choose_device(config.model.device, available_devices())
        self._tokenizer, self._model = _load(path, self._device)
        self._positive = positive_class(self._model.config.num_labels, config.judge.positive_class)
        if self._positive is None and config.judge.score_range is None:
            raise JudgeMisconfigured("this reward model has one output, on no known scale: set judge.score_range")
        self._max_tokens = min(MAX_TOKENS, self._tokenizer.model_max_length, _positions(self._model.config))
        self._lock = threading.Lock()
        self.version = f"reward_model@{_fingerprint(path)}"

    def score(self, prompt: str, response: str, next_state: str) -> float:
        """The model's number for one turn; one call at a time."""
        text = self._text((prompt, response, next_state))
        batch = self._tokenizer(text, truncation=True, max_length=self._max_tokens, return_tensors="pt")
        with self._lock, torch.inference_mode():
            logits = self._model(**batch.to(self._device)).logits[0].float()
        if self._positive is None:
            return float(logits[0])
        return float(torch.softmax(logits, dim=-1)[self._positive])

    def _text(self, parts: Sequence[str]) -> str:
        """The three parts under their labels; where they are too long together, each loses of its middle."""
        ids = [self._tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts]
        room = self._max_tokens - sum(len(self._tokenizer(label)["input_ids"]) for label in _LABELS)
        limits = shared_budget([len(one) for one in ids], max(0, room))
        kept = [
            part if len(one) <= limit else self._decoded(one, limit)
            for part, one, limit in zip(parts, ids, limits, strict=True)
        ]
        return "".join(label + part for label, part in zip(_LABELS, kept, strict=True))

    def _decoded(self, ids: list[int], limit: int) -> str:
        head = limit * 2 // 3
        tail = ids[len(ids) - (limit - head) :] if limit > head else []
        return str(self._tokenizer.decode(ids[:head])) + str(self._tokenizer.decode(tail))


def positive_class(labels: int, wanted: int | None) -> int | None:
    """Which of a model's classes is the positive one; None for a model with one output.

    Raises:
        JudgeMisconfigured: if there is no such class, or nobody said which of several.
    """
    if labels == 1:
        if wanted is not None:
            raise JudgeMisconfigured("judge.positive_class: this reward model has one output and no classes")
        return None
    if wanted is None and labels != 2:
        raise JudgeMisconfigured(f"this reward model has {labels} classes: judge.positive_class must name one")
    chosen = 1 if wanted is None else wanted
    if chosen >= labels:
        raise JudgeMisconfigured(
            f"judge.positive_class = {chosen}: this reward model has the classes 0 to {labels - 1}"
        )
    return chosen


def _load(path: Path, device: str) -> tuple[Any, Any]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        model, found = AutoModelForSequenceClassification.from_pretrained(
            str(path), local_files_only=True, dtype="auto", output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise JudgeMisconfigured(f"judge.model {str(path)!r} cannot be loaded: {error}") from error
    missing = sorted(found["missing_keys"])
    if missing:  # Transformers would make them up at random
        raise JudgeMisconfigured(f"judge.model {str(path)!r} is no trained classifier: it has no {missing[0]}")
    return tokenizer, model.to(device).eval()


def _positions(config: Any) -> int:
    return int(getattr(config, "max_position_embeddings", None) or MAX_TOKENS)


def _fingerprint(path: Path) -> str:
    """A hash of the configuration and of each weight file's size and beginning: whole files may be many gigabytes."""
    seen = [(path / "config.json").read_bytes()]
    for file in sorted(path.glob("*.safetensors")):
        with file.open("rb") as weights:
            seen += [str(file.stat().st_size).encode(), weights.read(_HASHED_BYTES)]
    return digest(b"\0".join(seen))
