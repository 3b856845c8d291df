"""What SGLang can do, for those who ask without loading anything."""

from __future__ import annotations

from collections.abc import Iterable

from openclaw_rl.serving.engines.protocol import EngineCapabilities

CAPABILITIES = EngineCapabilities(
    token_ids=True,
    logprobs=True,
    lora_versions=True,
    score=True,
    tools=True,
    full_weights=True,
    base_beside=False,
)

_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}


def ready_modules(names: Iterable[str]) -> set[str]:
    """The layers that SGLang makes ready for adapters of these: it holds some as one, and then takes each of them."""
    parts = (name.rsplit(".", 1)[-1] for name in names)
    return {_FUSED.get(part, part) for part in parts}
