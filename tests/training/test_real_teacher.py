"""The teacher on the real default model: without a hint it is the student, token for token."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from benchmarks import hints as benchmark
from openclaw_rl.config import Config
from openclaw_rl.models import load_tokenizer, resolve_model
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.loop import load_trainer
from openclaw_rl.training.scorer import Mode
from tests.training.support import shake

MESSAGES = (
    {"role": "user", "content": "What is the weather in Oslo?"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {
        "name": "weather", "arguments": '{"city": "Oslo"}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain, 4 degrees"},
)  # fmt: skip
TOOLS = ({"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},)
TEMPERATURE = 0.7


@pytest.mark.real_model
def test_the_teacher_is_the_student_to_1e_4_per_token(tmp_path: Path) -> None:
    """With an adapter that is not the base, and as Transformers itself has it: every token, the first one too."""
    torch.set_num_threads(1)
    config = Config(run_dir=tmp_path)
    trainer = load_trainer(config)
    shake(trainer, scale=0.01)
    path = resolve_model(config.model)
    tokenizer = load_tokenizer(path)
    renderer = Renderer(tokenizer)
    prompt = renderer.render(MESSAGES, TOOLS)
    for answer in ("It rains in Oslo, and it is cold.", ""):
        ids = (*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id)
        sequence = TokenSequence(prompt_ids=prompt, response_ids=ids, start=0)
        student = trainer.scorer.score(sequence, Mode.STUDENT, temperature=TEMPERATURE).logprobs.detach()
        length = len(ids)
        hidden = trainer.teacher.read([sequence], length=length, max_tokens=4096, progress=lambda: None)
        teacher = trainer.teacher.log_distribution(hidden, torch.full((length,), TEMPERATURE))
        teacher = teacher.gather(-1, torch.tensor(ids).unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            trainer.model.eval()
            logits = trainer.model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
            plain = (
                torch.log_softmax(logits / TEMPERATURE, -1).gather(-1, torch.tensor(ids).unsqueeze(-1)).squeeze(-1)
            )
        assert teacher.shape == (length,)
        torch.testing.assert_close(teacher, student, atol=1e-4, rtol=0)
        torch.testing.assert_close(teacher, plain, atol=1e-4, rtol=0)


@pytest.mark.real_model
def test_a_hint_raises_answers_in_its_style_and_lowers_the_policys_own() -> None:
    torch.set_num_threads(1)
    figures = benchmark.run(argparse.Namespace(model_path="smollm2", placement="user"))
    for style in figures["styles"]:
        assert style["in_style"] > 0.2, style["style"]
        assert style["own"] < -0.1, style["style"]
    for style in figures["styles"]:
        if style["style"] in {"one short sentence", "in French"}:
            assert style["in_style"] > style["out_of_style"] + 0.3
