"""The section `engine`: which engine generates, and what it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from openclaw_rl.config_base import LOOPBACK, Count, Positive, Section


class EngineConfig(Section):
    """The engine that generates: `embedded` is a Transformers process of its own; `scripted` is a fake for tests."""

    kind: Literal["embedded", "scripted"] = "embedded"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0 takes a free port."""
    max_parallel: Count = 8
    """Requests generated in one batch; more wait in the engine's queue."""
    context_length: Count = 2048
    """Prompt and answer together, tokens; never more than the model's own."""
    prefill_chunk_tokens: Count = 32
    """A long prompt is read in pieces of about this size, so that other streams go on between them: two tokens more
    for each stream, four times as many while there is none."""
    max_versions: Count = 4
    """LoRA versions kept loaded; one in use is never unloaded."""
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads; 0 takes one fewer than the machine has, at least one."""
    load_timeout_s: Positive = 120.0
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
        if self.kind != "scripted" and self.script is not None:
            raise ValueError("engine.script is only for engine.kind = scripted")
        return self
