"""Code of the user's own, named in the configuration as `module:attribute` or `file.py:attribute`.

Whoever takes such an option loads it at start-up, so that a wrong name is an error then and not in the first step.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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
