"""Loads the user's own rollout code and holds it against its contract, at start-up and not in the first rollout."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any, cast

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.extensions import load_attribute
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
    found = _load(path, GENERATE_OPTION, GENERATE_PARAMETERS)
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
    found = _load(path, ROLLOUT_OPTION, ROLLOUT_PARAMETERS)
    if not inspect.isasyncgenfunction(_code_of(found)):
        raise ConfigError(f"{ROLLOUT_OPTION} = {path!r} must be an async generator (async def with yield) of groups")
    return cast(RolloutFunction, found)


def _load(path: str, option: str, parameters: tuple[str, ...]) -> Callable[..., Any]:
    try:
        found = load_attribute(path, option=option)
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's own code raises, it is told where the configuration is checked
        raise ConfigError(f"{option} = {path!r}: {type(error).__name__}: {error}") from error
    if not callable(found) or inspect.isclass(found):
        what = "a class" if inspect.isclass(found) else f"a {type(found).__name__}"
        raise ConfigError(f"{option} = {path!r} is {what}, not a function of ({', '.join(parameters)})")
    _check_parameters(found, path, option, parameters)
    return cast("Callable[..., Any]", found)


def _check_parameters(function: Callable[..., Any], path: str, option: str, parameters: tuple[str, ...]) -> None:
    """They are given in these places; a parameter that nobody gives must have a default."""
    signature = inspect.signature(function)
    try:
        signature.bind(*parameters)
    except TypeError as error:
        surplus = [
            name
            for place, (name, one) in enumerate(signature.parameters.items())
            if one.default is one.empty
            and one.kind not in {one.VAR_POSITIONAL, one.VAR_KEYWORD}
            and (place >= len(parameters) or one.kind is one.KEYWORD_ONLY)
        ]
        near = difflib.get_close_matches(surplus[0], parameters, n=1) if surplus else []
        hint = f" ({surplus[0]!r} is given by nobody{f'; {near[0]!r} is' if near else ''})" if surplus else ""
        raise ConfigError(
            f"{option} = {path!r} must take ({', '.join(parameters)}), not {signature}: {error}{hint}"
        ) from error


def _code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or the `__call__` of an object."""
    plain = inspect.isroutine(function)
    return inspect.unwrap(function) if plain else type(function).__call__
