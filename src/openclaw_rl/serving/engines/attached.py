"""A vLLM or SGLang that runs already, asked before anything is started; its engine process asks again.

Imports neither torch nor Transformers, which take seconds: of the model's own length only `config.json` is read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.serving.engines.factory import SPOKEN_FOR
from openclaw_rl.serving.engines.protocol import EngineCapabilities, EngineError, EngineUnavailable
from openclaw_rl.serving.engines.requirements import EngineAway, Situation
from openclaw_rl.serving.engines.sglang.client import SglangEngine
from openclaw_rl.serving.engines.sglang.requirements import unmet
from openclaw_rl.serving.engines.vllm.api import VllmApi
from openclaw_rl.serving.engines.vllm.probe import check_fit, check_server

CHECK_S = 180.0
"""How long a server that answers may take to say what it is: a vLLM on a CPU runs programs to find out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """It answers; what its kind can do."""

    capabilities: EngineCapabilities
    context_length: int | None = None


class Server(Protocol):
    """A server of another program."""

    async def probe(self) -> Answers:
        """Return if it answers.

        Raises:
            EngineError: it does not.
        """
        ...

    async def check(self, situation: Situation) -> None:
        """Hold it against what is to be run.

        Raises:
            ConfigError: it lacks something; the message names the argument that it must be started with.
            EngineError: it does not answer as it should.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class _Vllm:
    def __init__(self, config: Config, url: str) -> None:
        self._api = VllmApi(url, request_timeout_s=CHECK_S, load_timeout_s=config.engine.load_timeout_s)

    async def probe(self) -> Answers:
        await self._api.healthy()
        return Answers(capabilities=SPOKEN_FOR["vllm"])

    async def check(self, situation: Situation) -> None:
        found = await check_server(self._api, attached=True)
        check_fit(found, situation, context=wanted_context(situation.config) or 0)

    async def close(self) -> None:
        self._api.close()


class _Sglang:
    def __init__(self, config: Config, url: str) -> None:
        self._engine = SglangEngine.from_config(config, url)

    async def probe(self) -> Answers:
        await self._engine.server_info()
        return Answers(capabilities=SPOKEN_FOR["sglang"])

    async def check(self, situation: Situation) -> None:
        info = await self._engine.server_info()
        if lacking := unmet(info, situation, context=wanted_context(situation.config) or 0):
            raise ConfigError("; ".join(lacking))

    async def close(self) -> None:
        await self._engine.close()


def server_at(config: Config, url: str) -> Server:
    """The server of `config.engine.kind` at `url`, for one event loop; whoever asked for it closes it."""
    kinds: dict[str, Callable[[Config, str], Server]] = {"vllm": _Vllm, "sglang": _Sglang}
    return kinds[config.engine.kind](config, url)


async def check_server_at(server: Server, name: str, situation: Situation) -> None:
    """Hold a server that answers against what is to be run. `name` is how an error calls it.

    Raises:
        EngineAway: it is away after all.
        ConfigError: it will not do.
    """
    try:
        async with asyncio.timeout(CHECK_S):
            await server.check(situation)
    except TimeoutError as error:
        raise ConfigError(f"{name} did not say what it can do within {CHECK_S:g} s") from error
    except EngineUnavailable as error:
        raise EngineAway(f"{name} cannot be used: {error}") from error
    except EngineError as error:
        raise ConfigError(f"{name} cannot be used: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{name} will not do: {error}") from error


def wanted_context(config: Config) -> int | None:
    """`engine.context_length`, or the model's own length where it is shorter; None where `model.path` is no directory
    that says it: the engine process, which finds the model anyway, looks then.
    """
    try:
        said = json.loads((Path(config.model.path).expanduser() / "config.json").read_text(encoding="utf-8"))
        return min(config.engine.context_length, int(said["max_position_embeddings"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
