"""The section `engine.sglang`: how SGLang is started, and what is asked of it."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.config_base import Count, Positive, Section


class SglangConfig(Section):
    """SGLang as a process of its own (`engine.kind = "sglang"`)."""

    python: Path | None = None
    """The Python of an environment with SGLang. Unset: `.venv-sglang/bin/python` in the working directory,
    or beside the sources."""
    start_timeout_s: Positive = 600.0
    """How long loading the model may take before the server is started again."""
    kept_tokens: Count = 4096
    """The largest kept set (top_p, top_k) that is told, for training; a nucleus is cut at half of it."""
