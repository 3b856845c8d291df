"""A tiny random sequence classifier, saved and loaded as a real one would be."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from openclaw_rl.config import Config, JudgeConfig
from openclaw_rl.judging.base import JudgeError, JudgeMisconfigured
from openclaw_rl.judging.factory import build_judge
from openclaw_rl.judging.sequence_classifier import SequenceClassifier, positive_class
from openclaw_rl.testing.tiny_model import build_tiny_model
from openclaw_rl.types import TurnState
from tests.builders import make_request, make_turn, user


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def classifier(tiny: Path, folder: Path, labels: int) -> Path:
    """A classifier with the tiny model's tokenizer and random weights, none of them alike."""
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors", "generation_config.json"))
    config = LlamaConfig.from_pretrained(tiny, num_labels=labels)
    torch.manual_seed(0)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    return folder


def config_of(path: Path, **values: Any) -> Config:
    return Config(judge=JudgeConfig(kind="reward_model", model=str(path), **values))


def test_the_probability_of_the_positive_class_is_the_score(tiny: Path, tmp_path: Path) -> None:
    path = classifier(tiny, tmp_path / "two", 2)
    judge = build_judge(config_of(path))
    turn = make_turn(
        request=make_request(messages=(user("Write a haiku."),)),
        answer={"role": "assistant", "content": "Rain and rain."},
        state=TurnState.JUDGING,
        next_state=(user("Thanks."),),
    )
    judgement = asyncio.run(judge.judge(turn))
    tokenizer = AutoTokenizer.from_pretrained(path)
    text = "Prompt: [user] Write a haiku.\nResponse: Rain and rain.\nOutcome: [user] Thanks."
    with torch.inference_mode():
        logits = AutoModelForSequenceClassification.from_pretrained(path)(
            **tokenizer(text, return_tensors="pt")
        ).logits
    probability = float(torch.softmax(logits[0], -1)[1])
    assert judgement.details["raw"] == pytest.approx(probability, abs=1e-6)
    assert judgement.score == pytest.approx(2 * probability - 1, abs=1e-6)
    assert judgement.kind == "reward_model"
    assert judgement.prompt_version.startswith("reward_model@")


def test_what_is_too_long_loses_its_middle_and_keeps_the_outcome(tiny: Path, tmp_path: Path) -> None:
    model = SequenceClassifier(config_of(classifier(tiny, tmp_path / "two", 2)))
    text = model._text(("long " * 5000, "answer " * 5000, "It is wrong."))
    assert text.endswith("\nOutcome: It is wrong.")
    assert "\nResponse: answer" in text
    assert len(model._tokenizer(text)["input_ids"]) <= model._max_tokens + 8  # joints may tokenise otherwise
    assert 0.0 <= model.score("long " * 5000, "answer " * 5000, "It is wrong.") <= 1.0


def test_one_output_needs_a_declared_range_and_is_never_clipped(tiny: Path, tmp_path: Path) -> None:
    path = classifier(tiny, tmp_path / "one", 1)
    with pytest.raises(JudgeMisconfigured, match=r"judge\.score_range"):
        build_judge(config_of(path))
    turn = make_turn(state=TurnState.JUDGING, next_state=(user("Thanks."),))
    wide = asyncio.run(build_judge(config_of(path, score_range=(-100.0, 100.0))).judge(turn))
    assert wide.score == pytest.approx(wide.details["raw"] / 100)
    with pytest.raises(JudgeError) as caught:
        asyncio.run(build_judge(config_of(path, score_range=(1000.0, 1001.0))).judge(turn))
    assert caught.value.reason == "out_of_range"


def test_a_model_without_a_trained_head_is_refused(tiny: Path) -> None:
    with pytest.raises(JudgeMisconfigured, match="is no trained classifier"):
        SequenceClassifier(config_of(tiny))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JudgeMisconfigured, match=r"config\.json"):
        SequenceClassifier(config_of(tmp_path))


def test_which_class_is_positive() -> None:
    assert (positive_class(2, None), positive_class(2, 0), positive_class(5, 4), positive_class(1, None)) == (
        1, 0, 4, None,
    )  # fmt: skip
    for labels, wanted in ((1, 0), (3, None), (2, 2)):
        with pytest.raises(JudgeMisconfigured):
            positive_class(labels, wanted)
