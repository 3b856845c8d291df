"""The section `engine`: which engine generates, and what it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from openclaw_rl.config_base import LOOPBACK, Count, Positive, Section
from openclaw_rl.config_sglang import SglangConfig


class VllmConfig(Section):
    """What only vLLM is given; used where `engine.kind = vllm` and the engine process starts vLLM itself."""

    python: Path | None = None
    """The interpreter that vLLM is installed for; unset: `.venv-vllm/bin/python`, which `make vllm` creates."""
    kv_cache_gib: Count = 1
    """Memory for the KV cache (GiB) where vLLM computes on the CPU; on a GPU vLLM takes its own share."""
    compile: bool = False
    """Let vLLM compile the model at its start: minutes on a CPU, and faster afterwards."""
    start_timeout_s: Positive = 600.0
    """How long vLLM may take until it answers."""


class EngineConfig(Section):
    """The engine that generates: `embedded` is a Transformers process of its own, `vllm` a vLLM server that the
    engine process starts, or finds at `urls`, `sglang` the same with SGLang; `scripted` is a fake for tests."""

    kind: Literal["embedded", "vllm", "sglang", "scripted"] = "embedded"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0 takes a free port."""
    max_parallel: Count = 8
    """Requests generated in one batch; more wait in the engine's queue."""
    context_length: Count = 2048
    """Prompt and answer together, tokens; never more than the model's own."""
    prefill_chunk_tokens: Count = 32
    """A long prompt is read in pieces of this size, so that other streams go on between them."""
    max_versions: Count = 4
    """LoRA versions kept loaded; one in use is never unloaded."""
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads; 0 takes one fewer than the machine has, at least one."""
    load_timeout_s: Positive = 120.0
    urls: tuple[str, ...] = ()
    """Where a vLLM or SGLang runs (`http://HOST:PORT`), instead of one that is started here; only for these kinds."""
    extra_args: tuple[str, ...] = ()
    """Arguments passed on to the vLLM or SGLang that is started; the last word where they repeat one of ours."""
    vllm: VllmConfig = VllmConfig()
    sglang: SglangConfig = SglangConfig()
    script: Path | None = None
    """The scripted engine's answers (JSON); only for kind = scripted."""

    @model_validator(mode="after")
    def _never_beyond_loopback(self) -> EngineConfig:
        if self.host not in LOOPBACK:
            raise ValueError(
                f"engine.host {self.host} is not loopback: the engine asks for no key, only the gateway does"
            )
        if self.kind in {"embedded", "scripted"} and (self.urls or self.extra_args):
            raise ValueError("engine.urls and engine.extra_args are only for engine.kind = vllm or sglang")
        if self.urls and self.extra_args:
            raise ValueError("engine.extra_args are for a server that is started here, not for one at engine.urls")
        if len(self.urls) > 1:
            raise ValueError("engine.urls takes one address: this version routes to one engine")
        for url in self.urls:
            address = urlsplit(url)
            if address.scheme != "http" or not address.hostname or address.port is None:
                raise ValueError(f"engine.urls are of the form http://HOST:PORT, not {url}")
        if self.kind == "scripted" and self.script is None:
            raise ValueError("engine.kind = scripted needs engine.script")
        if self.kind != "scripted" and self.script is not None:
            raise ValueError("engine.script is only for engine.kind = scripted")
        return self
