from __future__ import annotations

import pytest
import torch

from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.scorer import Mode
from tests.training.support import tiny_model, tiny_trainer

SEQUENCE = TokenSequence(prompt_ids=(5, 17, 2, 9), response_ids=(33, 8, 60), start=0)


def test_scores_are_those_of_the_whole_model() -> None:
    """Against a plain forward pass over everything, at temperature 0.7."""
    trainer = tiny_trainer(shaken=True)
    with torch.no_grad():
        logits = trainer.model(input_ids=torch.tensor([SEQUENCE.prompt_ids + SEQUENCE.response_ids])).logits
    expected = (logits[0, 3:6] / 0.7).log_softmax(-1)
    scores = trainer.scorer.score(SEQUENCE, Mode.STUDENT, temperature=0.7, top_k=3, full=True)
    assert scores.distribution is not None
    assert scores.top_logprobs is not None
    assert scores.top_ids is not None
    torch.testing.assert_close(scores.distribution, expected)
    torch.testing.assert_close(scores.logprobs, expected[[0, 1, 2], [33, 8, 60]])
    torch.testing.assert_close(scores.top_logprobs, expected.topk(3).values)
    assert torch.equal(scores.top_ids, expected.topk(3).indices)


def test_reference_is_the_base_whatever_the_adapter() -> None:
    trainer = tiny_trainer(shaken=True)
    with torch.no_grad():
        logits = tiny_model()(input_ids=torch.tensor([SEQUENCE.prompt_ids + SEQUENCE.response_ids])).logits
    expected = logits[0, 3:6].log_softmax(-1)[[0, 1, 2], [33, 8, 60]]
    torch.testing.assert_close(trainer.scorer.score(SEQUENCE, Mode.REFERENCE).logprobs, expected)
    student = trainer.scorer.score(SEQUENCE, Mode.STUDENT).logprobs
    assert float((student.detach() - expected).abs().max()) > 0.1


def test_a_fresh_adapter_is_the_reference() -> None:
    trainer = tiny_trainer()
    student = trainer.scorer.score(SEQUENCE, Mode.STUDENT).logprobs
    assert torch.equal(student, trainer.scorer.score(SEQUENCE, Mode.REFERENCE).logprobs)
    assert student.requires_grad


def test_only_the_student_has_gradients_and_the_adapter_stays_trainable() -> None:
    trainer = tiny_trainer(shaken=True)
    for mode in (Mode.REFERENCE, Mode.TEACHER):
        assert not trainer.scorer.score(SEQUENCE, mode).logprobs.requires_grad
    trainer.scorer.score(SEQUENCE, Mode.STUDENT).logprobs.sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for n, p in trainer.model.named_parameters() if "lora_" in n)
    assert all(p.grad is None for n, p in trainer.model.named_parameters() if "lora_" not in n)


def test_a_neighbour_in_the_pack_changes_nothing() -> None:
    trainer = tiny_trainer(shaken=True)
    other = TokenSequence(prompt_ids=(1, 2, 3, 4, 5), response_ids=(6, 7, 8), start=3)
    (pack,) = trainer.scorer.plan([SEQUENCE, other], 100)
    assert pack.row_lengths == (7, 6)
    row = torch.zeros(6, 32)
    row[pack.flat] = trainer.scorer.hidden(pack, Mode.TEACHER)
    distribution = trainer.scorer.log_distribution(row[:3], torch.ones(3))
    alone = trainer.scorer.score(SEQUENCE, Mode.TEACHER, full=True).distribution
    assert alone is not None
    torch.testing.assert_close(distribution, alone, atol=1e-5, rtol=0)


def test_a_head_that_the_scorer_would_miss_is_refused() -> None:
    from peft import LoraConfig, get_peft_model

    from openclaw_rl.training.scorer import Scorer

    model = get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj", "lm_head"]))
    with pytest.raises(ValueError, match="output head"):
        Scorer(model)
