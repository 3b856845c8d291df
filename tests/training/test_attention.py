from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import nn

from openclaw_rl.training.attention import attend_within_rows
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.scorer import Mode, Scorer

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {"use_sliding_window": False},
    "Qwen3": {"head_dim": 8},
    "Mistral": {"sliding_window": 4},
    "Phi3": {},
    "Olmo2": {},
    "SmolLM3": {},
}


def causal_lm(family: str, **values: Any) -> Any:
    torch.manual_seed(5)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **values})
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def adapted(model: Any) -> Any:
    torch.manual_seed(6)
    return get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))


def sequence(number: int, prompt: int, response: int, start: int) -> TokenSequence:
    ids = torch.randint(1, 61, (prompt + response,), generator=torch.Generator().manual_seed(number)).tolist()
    return TokenSequence(prompt_ids=tuple(ids[:prompt]), response_ids=tuple(ids[prompt:]), start=start)


def gradient(model: Any, states: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    (states * torch.sin(torch.arange(states.numel()).view_as(states))).sum().backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_row_is_the_row_alone_in_every_family(family: str) -> None:
    """Against Transformers' own SDPA attention over each row by itself: hidden states, and gradients of all three."""
    sequences = [sequence(1, 9, 3, 0), sequence(2, 3, 2, 3), sequence(3, 5, 1, 5)]
    plain = adapted(causal_lm(family, **FAMILIES[family]))
    alone = [
        plain.get_base_model()
        .get_decoder()(input_ids=torch.tensor([s.prompt_ids + s.response_ids]))
        .last_hidden_state[0, len(s.prompt_ids) - 1 : -1]
        for s in sequences
    ]
    model = adapted(causal_lm(family, **FAMILIES[family]))
    scorer = Scorer(model)
    (pack,) = scorer.plan(sequences, 100)
    assert pack.row_lengths == (11, 5, 4)
    together = scorer.hidden(pack, Mode.STUDENT)[pack.flat.argsort()]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)
    expected = gradient(plain, torch.cat(alone))
    assert float((gradient(model, together) - expected).norm() / expected.norm()) < 1e-5


def test_a_model_that_carries_a_state_along_reads_one_row_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    """Mamba has no attention to tell where a row begins."""
    torch.manual_seed(5)
    config = transformers.MambaConfig(
        vocab_size=61, hidden_size=32, state_size=4, num_hidden_layers=2, initializer_range=0.3
    )
    model = get_peft_model(
        transformers.MambaForCausalLM(config).eval(), LoraConfig(r=2, target_modules=["x_proj", "in_proj"])
    )
    scorer = Scorer(model)
    assert "does not keep packed rows apart" in caplog.text
    assert [pack.row_lengths for pack in scorer.plan([sequence(1, 9, 3, 0), sequence(2, 3, 2, 3)], 100)] == [
        (11,),
        (4,),
    ]


def test_a_row_sees_its_own_past_and_nothing_else() -> None:
    """Changing one token moves what lies behind it in its row, and is bit for bit nothing to the other rows."""
    query, key, value = (
        torch.randn(1, heads, 10, 8, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2, 2)
    )
    module = nn.Module()
    module.num_key_value_groups = 2  # type: ignore[assignment]
    before, _ = attend_within_rows(module, query, key, value, None, row_lengths=(4, 6))
    changed = value.clone()
    changed[:, :, 6] += 1.0
    after, _ = attend_within_rows(module, query, key, changed, None, row_lengths=(4, 6))
    assert before.shape == (1, 10, 4, 8)
    assert [not torch.equal(before[:, i], after[:, i]) for i in range(10)] == [False] * 6 + [True] * 4


def test_a_sliding_window_is_the_masked_softmax() -> None:
    query, key, value = (torch.randn(1, 1, 7, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    seen, _ = attend_within_rows(
        nn.Module(), query, key, value, None, row_lengths=(2, 5), sliding_window=3, scaling=0.5
    )
    for position, begin in enumerate([0, 0, 2, 2, 2, 3, 4]):
        window = slice(begin, position + 1)
        weights = (0.5 * query[0, 0, position] @ key[0, 0, window].T).softmax(-1)
        torch.testing.assert_close(seen[0, position, 0], weights @ value[0, 0, window])


def test_what_it_cannot_honour_is_refused() -> None:
    states = torch.zeros(1, 1, 4, 4)
    with pytest.raises(ValueError, match="rows of 3 tokens in a pass of 4"):
        attend_within_rows(nn.Module(), states, states, states, None, row_lengths=(1, 2))
    with pytest.raises(ValueError, match="takes no mask"):
        attend_within_rows(nn.Module(), states, states, states, torch.ones(1, 1, 4, 4), row_lengths=(4,))
    with pytest.raises(ValueError, match="softcap"):
        attend_within_rows(nn.Module(), states, states, states, None, row_lengths=(4,), softcap=30.0)
