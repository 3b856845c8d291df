"""The section `engine`: which engine generates, and what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from openclaw_rl.config_base import LOOPBACK, Count, Positive, Section
from openclaw_rl.config_sglang import SglangConfig

SERVERS = frozenset({"vllm", "sglang"})
"""Kinds that are another program's server, for which our engine process speaks."""


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
    """The engine that generates: `embedded` is a Transformers process of its own; `vllm` a vLLM server that the
    engine process starts, or finds at `urls`; `sglang` the same with SGLang; `openai` any upstream that speaks
    OpenAI's chat completions; `scripted` is a fake for tests."""

    kind: Literal["embedded", "vllm", "sglang", "openai", "scripted"] = "embedded"
    """Which engine generates (page 13)."""
    urls: tuple[str, ...] = ()
    """Where engines that run already answer: vLLM or SGLang (`http://HOST:PORT`) instead of one that is started
    here, or upstreams (`https://HOST/v1`). Several are replicas of one engine."""
    replicas: Count = 1
    """How many engines are started here, each with a copy of the model; a session stays on one of them. Those at
    `urls` count by themselves."""
    replica_ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = ()
    """Where the processes of several replicas listen; empty: at `port` and at free ones."""
    api_key: SecretStr | None = None
    """kind = openai: the upstreams' key; kind = sglang: the `--api-key` of those at `urls`. Best in the
    environment, `OPENCLAW_RL_ENGINE__API_KEY`."""
    upstream_model: str | None = None
    """kind = openai: the model's name there."""
    upstream_logprobs: Literal["raw", "processed"] = "raw"
    """kind = openai: what its log-probabilities are of. `raw`: of the model's own distribution, as most report; then
    only answers at temperature 1 can be trained. `processed`: of the one that was drawn from."""
    host: str = "127.0.0.1"
    """Where the engine process listens."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0 takes a free port."""
    max_parallel: Count = 8
    """Requests generated in one batch; more wait in the engine's queue."""
    context_length: Count = 2048
    """Prompt and answer together, tokens; never more than the model's own."""
    prefill_chunk_tokens: Count = 32
    """A long prompt is read in pieces of about this size, so that other streams go on between them: two tokens more
    for each stream, four times as many while there is none."""
    max_versions: Annotated[int, Field(ge=2)] = 4
    """LoRA versions kept loaded, at least the one in service and the next; one in use is never unloaded."""
    max_full_versions: Annotated[int, Field(ge=2)] = 2
    """Whole models kept loaded beside the base (training.use_lora = false), each as large as it. While all of them
    are in use, or were the last to be, a new one waits."""
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads; 0 takes one fewer than the machine has, at least one."""
    load_timeout_s: Positive = 120.0
    """How long loading one version may take."""
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
        if self.kind == "scripted" and self.script is None:
            raise ValueError("engine.kind = scripted needs engine.script")
        if self.api_key is not None and self.kind != "openai" and not (self.kind == "sglang" and self.urls):
            raise ValueError("engine.api_key is only for engine.kind = openai, and for a SGLang at engine.urls")
        for name, kind in _ONLY_FOR.items():
            if self.kind != kind and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"engine.{name} is only for engine.kind = {kind}")
        return self

    @model_validator(mode="after")
    def _server_of_another_program(self) -> EngineConfig:
        if self.kind not in SERVERS:
            if self.extra_args:
                raise ValueError("engine.extra_args is only for engine.kind = vllm or sglang")
            return self
        if self.urls and self.extra_args:
            raise ValueError("engine.extra_args are for a server that is started here, not for one at engine.urls")
        for url in self.urls:
            address = urlsplit(url)
            if address.scheme != "http" or not address.hostname or address.port is None:
                raise ValueError(f"engine.urls are of the form http://HOST:PORT, not {url}")
        return self

    @model_validator(mode="after")
    def _addresses(self) -> EngineConfig:
        if self.kind == "openai" and not self.urls:
            raise ValueError("engine.kind = openai needs engine.urls, the upstream's base URL: https://HOST/v1")
        if self.kind == "openai" and self.upstream_model is None:
            raise ValueError("engine.kind = openai needs engine.upstream_model, the model's name there")
        if self.kind in {"embedded", "scripted"} and self.urls:
            raise ValueError(f"engine.urls is not for engine.kind = {self.kind}: `up` starts engine.replicas of it")
        if self.kind == "openai" and self.replicas > 1:
            raise ValueError("engine.replicas is not for engine.kind = openai: name each in engine.urls")
        if self.urls and self.replicas not in {1, len(self.urls)}:
            raise ValueError(
                f"engine.replicas = {self.replicas}, and engine.urls names {len(self.urls)}: leave it out"
            )
        self._check_ports()
        for url in self.urls:
            address = urlsplit(url)
            if address.scheme not in {"http", "https"} or not address.hostname:
                raise ValueError(f"engine.urls: {url!r} is no http:// or https:// URL")
            if address.username or address.password or address.query or address.fragment:
                raise ValueError("engine.urls: a URL here is host, port and path; the key goes to engine.api_key")
        if len({url.rstrip("/") for url in self.urls}) < len(self.urls):
            raise ValueError("engine.urls names one address twice")
        return self

    def _check_ports(self) -> None:
        ports = self.replica_ports
        if not ports:
            return
        if self.kind == "openai" or self.count == 1:
            raise ValueError("engine.replica_ports is for several engines of which each has a process here")
        if len(ports) != self.count:
            raise ValueError(f"engine.replica_ports names {len(ports)} ports, and there are {self.count} replicas")
        if len(set(ports)) != len(ports):
            raise ValueError("engine.replica_ports names one port twice")

    @property
    def count(self) -> int:
        """How many engines there are."""
        return max(self.replicas, len(self.urls))


_ONLY_FOR: Mapping[str, str] = {
    "script": "scripted",
    "upstream_model": "openai",
    "upstream_logprobs": "openai",
}


def as_now(tree: Any) -> Any:
    """The tree of a deployment in this version's words: earlier ones had the addresses of own replicas in `urls`."""
    engine = tree.get("engine") if isinstance(tree, Mapping) else None
    if not isinstance(engine, Mapping) or engine.get("kind", "embedded") not in {"embedded", "scripted"}:
        return tree
    ports = [urlsplit(url).port for url in engine.get("urls") or ()]
    return {**tree, "engine": {**engine, "urls": [], "replica_ports": ports}} if ports else tree
