"""The adapter of the engine that the configuration names."""

from __future__ import annotations

from openclaw_rl.config import Config
from openclaw_rl.serving.engines.embedded.client import EmbeddedEngine
from openclaw_rl.serving.engines.protocol import Engine
from openclaw_rl.serving.engines.sglang.capabilities import CAPABILITIES as SGLANG
from openclaw_rl.serving.engines.vllm.capabilities import CAPABILITIES as VLLM


def connect(config: Config) -> Engine:
    """A fresh adapter to this deployment's engine, for one event loop; whoever asked for it closes it."""
    if config.engine.kind == "vllm":  # the engine process speaks for it, in the embedded engine's HTTP
        return EmbeddedEngine.from_config(config, capabilities=VLLM)
    if config.engine.kind == "sglang":  # likewise
        return EmbeddedEngine.from_config(config, capabilities=SGLANG)
    return EmbeddedEngine.from_config(config)
