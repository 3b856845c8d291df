"""The adapter of the engine that the configuration names."""

from __future__ import annotations

from openclaw_rl.config import Config
from openclaw_rl.serving.engines.embedded.client import EmbeddedEngine
from openclaw_rl.serving.engines.protocol import Engine
from openclaw_rl.serving.engines.sglang.client import SglangEngine


def connect(config: Config) -> Engine:
    """A fresh adapter to this deployment's engine, for one event loop; whoever asked for it closes it."""
    if config.engine.kind == "sglang":
        return SglangEngine.from_config(config)
    return EmbeddedEngine.from_config(config)
