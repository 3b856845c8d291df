"""The adapter of the engine that the configuration names."""

from __future__ import annotations

from openclaw_rl.config import Config
from openclaw_rl.serving.engines.embedded.client import EmbeddedEngine
from openclaw_rl.serving.engines.protocol import Engine


def connect(config: Config) -> Engine:
    """A fresh adapter to this deployment's engine, for one event loop; whoever asked for it closes it.

    Where `engine.urls` names several, it is one adapter to all of them.
    """
    urls = config.engine.urls
    if len(urls) < 2:
        return adapter(config, urls[0] if urls else None)
    from openclaw_rl.serving.engines.replicas.drains import DrainList
    from openclaw_rl.serving.engines.replicas.engine import ReplicatedEngine

    return ReplicatedEngine(
        {url: adapter(config, url) for url in urls},
        rolling=config.serving.on_publish == "rolling",
        drains=DrainList(config.run_dir),
    )


def adapter(config: Config, url: str | None) -> Engine:
    """The adapter to the one engine at `url`; None: to that of `engine.host` and `engine.port`."""
    if config.engine.kind == "openai":
        from openclaw_rl.serving.engines.openai.client import OpenAIEngine  # httpx takes a while to import

        return OpenAIEngine.from_config(config, url or config.engine.urls[0])
    return EmbeddedEngine.from_config(config, url)
