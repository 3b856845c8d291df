"""Whether the configured model is there at all; imports no torch, so that it can be asked before a start."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError

SMOLLM2 = "smollm2"
"""The name, in the place of a path, of the model that comes as a package."""
_LOADED_BY = frozenset({"embedded", "vllm", "sglang"})
"""The kinds of engine with which the directory is read here, whether or not anything is trained, and also where their
servers were started by somebody else: of an `openai` upstream alone, nothing has to be here."""


class ModelNotFound(ConfigError):
    """The configured model is not there, or is no Hugging Face model that can be loaded."""


def model_directory(named: str) -> Path:
    """The directory that `model.path` names, which is not `smollm2`.

    Raises:
        ModelNotFound: no such directory, or no config.json in it.
    """
    path = Path(named).expanduser()
    if not path.is_dir():
        raise ModelNotFound(f"model.path {named!r} is no directory (nor {SMOLLM2!r})")
    if not (path / "config.json").is_file():
        raise ModelNotFound(f"model.path {named!r} holds no config.json: it is no Hugging Face model directory")
    return path


def check_model_path(config: Config) -> None:
    """Say what a start would of a model that is not there, where one would look; nothing is loaded.

    Raises:
        ModelNotFound: as `model_directory`.
    """
    wanted = config.training.enabled or config.engine.kind in _LOADED_BY
    if wanted and config.model.path != SMOLLM2:
        model_directory(config.model.path)
