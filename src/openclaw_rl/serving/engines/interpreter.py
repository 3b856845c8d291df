"""The Python of an engine that has an environment of its own, looked for before anything is started.

vLLM and SGLang pin libraries of their own, so they do not share ours. The supervisor asks here too, which has neither
torch nor Transformers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import openclaw_rl
from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError

SOURCES = Path(openclaw_rl.__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """`server`: its name for people. `python`: in one of the folders that are looked in. `made`: how it is made."""

    server: str
    python: Path
    made: str


ENVIRONMENTS = {
    "vllm": Environment(server="vLLM", python=Path(".venv-vllm/bin/python"), made="`make vllm` creates it"),
    "sglang": Environment(server="SGLang", python=Path(".venv-sglang/bin/python"), made="docs/13-engines.md"),
}
"""By `engine.kind`."""


def check_python(config: Config) -> None:
    """Return if the engine that is to be started has its Python, or is none that needs one.

    Raises:
        ConfigError: as `python_for`.
    """
    if config.engine.kind in ENVIRONMENTS and not config.engine.urls:
        python_for(config.engine.kind, config)


def python_for(kind: str, config: Config, *, sources: Path = SOURCES) -> Path:
    """The Python that is configured for this kind; else that in the current folder, or in the one of the sources.

    Raises:
        ConfigError: it is not there; says how to get one.
    """
    wanted = {"vllm": config.engine.vllm.python, "sglang": config.engine.sglang.python}[kind]
    if wanted is not None:
        chosen = wanted.expanduser().absolute()
        if not _is_program(chosen):
            raise ConfigError(f"engine.{kind}.python {chosen} is no program")
        return chosen
    own, folders = ENVIRONMENTS[kind], list(dict.fromkeys((Path.cwd(), sources)))
    for folder in folders:
        if _is_program(folder / own.python):
            return folder / own.python
    raise ConfigError(
        f"engine.kind = {kind} needs {own.python} ({own.made}) in {' or '.join(map(str, folders))}; "
        f"or set engine.{kind}.python, or engine.urls to a {own.server} that runs"
    )


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
