"""What vLLM can do, for those who ask without loading anything."""

from __future__ import annotations

from openclaw_rl.serving.engines.protocol import EngineCapabilities

CAPABILITIES = EngineCapabilities(
    token_ids=True, logprobs=True, lora_versions=True, score=True, tools=True, full_weights=False
)
"""Whole models are not offered: a real vLLM pauses, reads them in place and goes on, but what the new weights say was
not held against Transformers yet (`test_whole_models_are_swapped_in_mid_generation`). vLLM's own `reload_weights`
leaves a CPU's packed copy of a tied output layer as it was; `in_vllm` packs it again.
"""
