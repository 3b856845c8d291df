"""The adapter of the engine that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from openclaw_rl.config import Config
from openclaw_rl.serving.engines.embedded.client import EmbeddedEngine
from openclaw_rl.serving.engines.protocol import Engine, EngineCapabilities
from openclaw_rl.serving.engines.sglang.capabilities import CAPABILITIES as SGLANG
from openclaw_rl.serving.engines.vllm.capabilities import CAPABILITIES as VLLM
from openclaw_rl.supervision.ports import engine_addresses

SPOKEN_FOR: Mapping[str, EngineCapabilities] = {"vllm": VLLM, "sglang": SGLANG}
"""Servers for which the engine process speaks, in the embedded engine's HTTP; and what each can do."""


def connect(config: Config) -> Engine:
    """A fresh adapter to this deployment's engine, for one event loop; whoever asked for it closes it.

    Where there are several, it is one adapter to all of them.
    """
    found = engine_addresses(config)
    if len(found) < 2:
        return adapter(config, next(iter(found.values()), None))
    from openclaw_rl.serving.engines.replicas.drains import DrainList
    from openclaw_rl.serving.engines.replicas.engine import ReplicatedEngine
    from openclaw_rl.serving.engines.replicas.replica import LOOK_S, SERVERS_LOOK_S

    return ReplicatedEngine(
        {name: adapter(config, address) for name, address in found.items()},
        rolling=config.serving.on_publish == "rolling",
        drains=DrainList(config.run_dir),
        look_s=SERVERS_LOOK_S if config.engine.kind in SPOKEN_FOR else LOOK_S,
    )


def adapter(config: Config, url: str | None) -> Engine:
    """The adapter to the one engine at `url`; None: to that of `engine.host` and `engine.port`."""
    if config.engine.kind in SPOKEN_FOR:
        return EmbeddedEngine.from_config(config, url, capabilities=_spoken_for(config))
    if config.engine.kind == "openai":
        from openclaw_rl.serving.engines.openai.client import OpenAIEngine  # httpx takes a while to import

        return OpenAIEngine.from_config(config, url or config.engine.urls[0])
    return EmbeddedEngine.from_config(config, url)


def _spoken_for(config: Config) -> EngineCapabilities:
    """What a server can do here. A whole model takes the place of the one before: several would each be at another
    one for a while, and none could be gone back to on one alone.
    """
    can = SPOKEN_FOR[config.engine.kind]
    return can if config.engine.count == 1 else replace(can, full_weights=False)
