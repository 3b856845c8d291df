"""The adapter of the engine that the configuration names."""

from __future__ import annotations

from openclaw_rl.config import Config
from openclaw_rl.serving.engines.embedded.client import EmbeddedEngine
from openclaw_rl.serving.engines.protocol import Engine


def connect(config: Config) -> Engine:
    """A fresh adapter to this deployment's engine, for one event loop; whoever asked for it closes it."""
    return adapter(config, config.engine.urls[0] if config.engine.urls else None)


def adapter(config: Config, url: str | None) -> Engine:
    """The adapter to the one engine at `url`; None: to that of `engine.host` and `engine.port`."""
    if config.engine.kind == "openai":
        from openclaw_rl.serving.engines.openai.client import OpenAIEngine  # httpx takes a while to import

        return OpenAIEngine.from_config(config, url or config.engine.urls[0])
    return EmbeddedEngine.from_config(config)
