"""What SGLang can do, for those who ask without loading anything."""

from __future__ import annotations

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
