"""Loads the user's own rollout code and holds it against its contract, at start-up and not in the first rollout."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.extensions import load_function
from openclaw_rl.rollout.extension_contracts import GenerateFunction, RolloutFunction
from openclaw_rl.rollout.run_tasks import one_answer, run_tasks

GENERATE_OPTION = "rollout.custom_generate_function_path"
ROLLOUT_OPTION = "rollout.rollout_function_path"
GENERATE_PARAMETERS = ("task", "policy")
ROLLOUT_PARAMETERS = ("tasks", "generate", "runner")


def load_generate(config: Config) -> GenerateFunction:
    """The generate function of this configuration; without one, a single answer that nobody rewards.

    Raises:
        ConfigError: it is not there, or does not fit its contract.
    """
    path = config.rollout.custom_generate_function_path
    if path is None:
        return one_answer
    found = load_function(path, option=GENERATE_OPTION, parameters=GENERATE_PARAMETERS)
    if not inspect.iscoroutinefunction(_code_of(found)):
        raise ConfigError(f"{GENERATE_OPTION} = {path!r} must be an async function (async def) that returns a result")
    return cast(GenerateFunction, found)


def load_rollout(config: Config) -> RolloutFunction:
    """The rollout function of this configuration; without one, ours.

    Raises:
        ConfigError: it is not there, or does not fit its contract.
    """
    path = config.rollout.rollout_function_path
    if path is None:
        return run_tasks
    found = load_function(path, option=ROLLOUT_OPTION, parameters=ROLLOUT_PARAMETERS)
    if not inspect.isasyncgenfunction(_code_of(found)):
        raise ConfigError(f"{ROLLOUT_OPTION} = {path!r} must be an async generator (async def with yield) of groups")
    return cast(RolloutFunction, found)


def _code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or the `__call__` of an object."""
    plain = inspect.isroutine(function)
    return inspect.unwrap(function) if plain else type(function).__call__
