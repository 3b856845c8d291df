"""The check at start-up: what the recipe needs against what the engine has, asked where it runs already."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import CorruptPolicy, UnreadablePolicy, WeightsKind, weights_of
from openclaw_rl.serving.engines.factory import SPOKEN_FOR, adapter
from openclaw_rl.serving.engines.protocol import EngineCapabilities, EngineError, EngineUnavailable
from openclaw_rl.serving.engines.replicas.gpus import gpus_here, gpus_of_each
from openclaw_rl.serving.engines.requirements import EngineAway, Offered, Situation, explain, unmet

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long an engine that somebody else starts may be away."""
RETRY_S = 0.5


class Found(Protocol):
    """What a probe finds."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """For the table of requirements."""
        ...

    @property
    def context_length(self) -> int | None:
        """None where the engine does not say."""
        ...


@runtime_checkable
class Probed(Protocol):
    """An adapter to an engine that runs already, and has to be asked what it is."""

    async def probe(self) -> Found:
        """Ask it.

        Raises:
            EngineError: it cannot be reached, or refuses; the message says what to set.
        """
        ...


def check_engine(config: Config, say: Callable[[str], None], *, patience_s: float = PATIENCE_S) -> None:
    """Refuse a configuration that the engine cannot do. `say` hears what takes time.

    Raises:
        ConfigError: naming each missing feature, the setting that needs it, and what to change.
    """
    situation = Situation(config=config, in_service=kind_in_service(config))
    problems: dict[str, None] = {}  # replicas mostly lack the same
    for offered in asyncio.run(_offers(config, say, patience_s)):
        problems |= dict.fromkeys(explain(row, offered) for row in unmet(situation, offered))
    if problems:
        raise ConfigError("; ".join(problems))
    if config.engine.kind in SPOKEN_FOR and config.engine.urls:
        asyncio.run(_ask_servers(situation, say, patience_s))
    elif config.engine.count > 1:
        gpus_of_each(config, os.environ, gpus_here())


async def _ask_servers(situation: Situation, say: Callable[[str], None], patience_s: float) -> None:
    """Ask each vLLM or SGLang that runs already: it may lack what others of its kind have.

    Of several, one that is away is no reason to start nothing: its process here asks it once it is back.
    """
    from openclaw_rl.serving.engines.attached import check_server_at, server_at  # only where there is one

    async def ask(url: str) -> EngineAway | None:
        name = f"the engine at {url} (engine.kind = {situation.config.engine.kind})"
        server = server_at(situation.config, url)
        try:
            await _patiently(server, name, say, patience_s)
            await check_server_at(server, name, situation)
        except EngineAway as error:
            return error
        finally:
            await server.close()
        return None

    away = [error for error in await asyncio.gather(*map(ask, situation.config.engine.urls)) if error is not None]
    if len(away) == situation.config.engine.count:
        raise away[0]
    for one in away:
        say(f"{one}: it is one of several, and gets requests once it is there")


async def _offers(config: Config, say: Callable[[str], None], patience_s: float) -> list[Offered]:
    urls = config.engine.urls if config.engine.kind == "openai" else ()  # at others' is a server, asked after this
    return [await _offered(config, url, say, patience_s) for url in urls or (None,)]


async def _offered(config: Config, url: str | None, say: Callable[[str], None], patience_s: float) -> Offered:
    kind = f"engine.kind = {config.engine.kind}"
    engine = adapter(config, url)
    several = f"{kind} with {config.engine.count} replicas" if config.engine.count > 1 else kind
    try:
        if not isinstance(engine, Probed):
            return Offered(name=several, capabilities=engine.capabilities)
        name = f"the engine at {url} ({kind})"
        found = await _patiently(engine, name, say, patience_s)
        return Offered(name=name, capabilities=found.capabilities, context_length=found.context_length)
    finally:
        await engine.close()


async def _patiently(engine: Probed, name: str, say: Callable[[str], None], patience_s: float) -> Found:
    deadline = asyncio.get_running_loop().time() + patience_s
    last: EngineUnavailable | None = None
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                return await engine.probe()
        except TimeoutError as error:
            why = f"did not answer within {patience_s:g} s" if last is None else f"cannot be used: {last}"
            raise EngineAway(f"{name} {why}") from error
        except EngineUnavailable as error:
            if last is None:
                say(f"waiting for {name}: {error}")
            last = error
            await asyncio.sleep(RETRY_S)
        except EngineError as error:
            raise ConfigError(f"{name} cannot be used: {error}") from error


def kind_in_service(config: Config) -> WeightsKind | None:
    """What kind of version an engine of others finds in service; None for the base, and where there is no record.

    Raises:
        ConfigError: the record cannot be read.
    """
    if config.engine.kind in {"embedded", "scripted"} or not config.store_path.exists():  # ours take what we make
        return None
    if config.policies.owned:  # the shared version serves nobody, and owners' are adapters
        return None
    import sqlite3

    from sqlalchemy.exc import SQLAlchemyError

    from openclaw_rl.store import Store
    from openclaw_rl.store.migrations import StoreSchemaError

    try:
        store = Store.open(config.store_path, migrate=False)
    except (SQLAlchemyError, sqlite3.Error, StoreSchemaError) as error:
        raise ConfigError(f"the record {config.store_path} cannot be read: {error}") from error
    try:
        path = store.versions.serving().path
        return None if path is None else weights_of(Path(path)).kind
    except (CorruptPolicy, UnreadablePolicy) as error:
        logger.warning("the version in service cannot be looked at: %s", error)
        return None
    finally:
        store.close()
