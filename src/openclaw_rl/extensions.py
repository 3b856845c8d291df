"""Code of the user's own, named in the configuration as `module:attribute` or `file.py:attribute`.

Whoever takes such an option loads it at start-up, so that a wrong name is an error then and not in the first step.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from openclaw_rl.config_sources import ConfigError


def load_attribute(path: str, *, option: str) -> Any:
    """The attribute that `path` names; `option` is the configuration key to name in errors.

    `package.module:attribute` is imported as Python would; `folder/file.py:attribute`, relative to the working
    directory, is run once per process, however many options name it. What that code itself raises is passed on.

    Raises:
        ConfigError: the path has not that form, the file or module does not exist, or has no such attribute.
    """
    source, colon, attribute = path.rpartition(":")
    if not colon or not source or not attribute.isidentifier():
        raise ConfigError(f"{option} = {path!r}: expected 'module:attribute' or 'file.py:attribute'")
    module = _from_file(Path(source), option) if source.endswith(".py") else _from_name(source, option)
    if not hasattr(module, attribute):
        near = difflib.get_close_matches(attribute, [name for name in vars(module) if not name.startswith("_")], n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{option} = {path!r}: {source} has no attribute {attribute!r}{meant}")
    return getattr(module, attribute)


def load_checked(path: str, *, option: str) -> Any:
    """`load_attribute` for a start-up that shows nobody a traceback: what the user's code raises is one sentence too.

    Raises:
        ConfigError: as `load_attribute`, or that code raised.
    """
    try:
        with one_process():
            return load_attribute(path, option=option)
    except ConfigError:
        raise
    except BaseException as error:  # whatever the user's own code raises; sys.exit() would end us unsaid
        raise ConfigError(f"{option} = {path!r}: {origin(error)}: {error}") from error


@contextmanager
def one_process() -> Iterator[None]:
    """Around code of the user's own that may fork: a child that comes back out of it ends here.

    It would go on as a second one of us, with our lock and our samples.
    """
    ours, code = os.getpid(), 0
    try:
        yield
    except BaseException as error:  # it is raised again, unless nobody is there to raise it to
        if os.getpid() == ours:
            raise
        code = exit_code(error)
    finally:
        if os.getpid() != ours:
            os._exit(code)


def exit_code(error: BaseException) -> int:
    """With which code a process ends that this was raised in. What it has to say is shown, as Python does."""
    given = error.code if isinstance(error, SystemExit) else error
    if given is None or isinstance(given, int):
        return (given or 0) & 0xFF
    with suppress(OSError, ValueError):  # nobody listens any more
        if isinstance(error, SystemExit):
            print(given, file=sys.stderr)  # noqa: T201 - where Python itself shows it
        else:
            traceback.print_exception(error)
    return 1


def load_function(path: str, *, option: str, parameters: tuple[str, ...]) -> Callable[..., Any]:
    """What `path` names, which can be called with these arguments, in these places.

    Raises:
        ConfigError: as `load_checked`, or it cannot.
    """
    found = load_checked(path, option=option)
    if not callable(found) or inspect.isclass(found):
        what = "a class" if inspect.isclass(found) else f"a {type(found).__name__}"
        raise ConfigError(f"{option} = {path!r} is {what}, not a function of ({', '.join(parameters)})")
    _check_parameters(found, path, option, parameters)
    return cast("Callable[..., Any]", found)


def origin(error: BaseException) -> str:
    """`ValueError (reward.py:12)`: the kind of an error and where it arose, without its message, which may quote."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{where}"


def _check_parameters(function: Callable[..., Any], path: str, option: str, parameters: tuple[str, ...]) -> None:
    """They are given in these places; a parameter that nobody gives must have a default."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a built-in function, which says nothing of its parameters
        return
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


def _from_file(file: Path, option: str) -> ModuleType:
    resolved = file.expanduser().resolve()
    if not resolved.is_file():
        raise ConfigError(f"{option}: there is no file {file}")
    name = f"openclaw_rl_extension_{hashlib.sha256(str(resolved).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{option}: Python cannot load {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their own module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _from_name(name: str, option: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise ConfigError(f"{option}: there is no module {missing!r}") from error
        raise  # the module exists and lacks something itself: its own traceback says where
