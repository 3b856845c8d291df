"""The same promises on the real SmolLM2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import ModelConfig
from openclaw_rl.models import load_tokenizer, resolve_model
from openclaw_rl.serving.engines.embedded.service import EmbeddedService
from openclaw_rl.serving.engines.protocol import ScoreRequest
from openclaw_rl.types import FinishReason
from tests.engines.support import (
    Answer,
    ask,
    config_for,
    plain_logprobs,
    plain_model,
    request,
    with_service,
    write_adapter,
)

pytestmark = pytest.mark.real_model


def test_smollm2_answers_ends_and_says_what_transformers_says(tmp_path: Path) -> None:
    model = resolve_model(ModelConfig())
    version = write_adapter(model, tmp_path, seed=1)
    sampled: dict[str, Any] = {"temperature": 0.7, "seed": 1, "max_tokens": 16}

    async def body(service: EmbeddedService) -> tuple[list[Answer], tuple[float, ...]]:
        await service.load_version(version)
        answers = [
            await ask(service, request("What is the capital of France?", max_tokens=40)),
            await ask(service, request("Name a river.", **sampled)),
            await ask(service, request("Name a river.", version=1, **sampled)),
        ]
        base = answers[1]
        scored = ScoreRequest(ids=base.prompt + base.ids, start=len(base.prompt), version=0, temperature=0.7)
        return answers, (await service.score(scored)).logprobs

    (capital, base, adapted), scored = with_service(config_for(model), body)
    assert "Paris" in capital.text
    assert "<|im_end|>" not in capital.text
    assert capital.ids[-1] == load_tokenizer(model).eos_token_id
    assert capital.finished.finish_reason is FinishReason.STOP
    assert scored == pytest.approx(base.logprobs, abs=1e-4)
    for answer, adapter in ((base, None), (adapted, tmp_path)):
        plain = plain_logprobs(plain_model(model, adapter), answer.prompt, answer.ids, 0.7)
        assert answer.logprobs == pytest.approx(plain, abs=1e-4)
