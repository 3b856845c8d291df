"""What vLLM can do, for those who ask without loading anything."""

from __future__ import annotations

from openclaw_rl.config_sources import ConfigError
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
"""Whole models take vLLM's routes for developers and our extension of its workers (`probe`): a server that is started
here has them, one that somebody else has started is asked.
"""

MADE_FOR = "0.32"
"""The version of vLLM that this adapter was written for, and tested with."""
EXTENSION = "openclaw_rl_in_vllm.WorkerExtension"
"""What vLLM's workers are given (`in_vllm`)."""


def allowed_rank(rank: int) -> int:
    """The smallest rank that vLLM has kernels for and that holds `rank`: up to it, a vLLM started for `rank` loads.

    Raises:
        ConfigError: there is none.
    """
    for allowed in (1, 8, 16, 32, 64, 128, 256, 320, 512):
        if rank <= allowed:
            return allowed
    raise ConfigError(f"training.lora.rank {rank}: vLLM loads adapters of rank 512 at most")
