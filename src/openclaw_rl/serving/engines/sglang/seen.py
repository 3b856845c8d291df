"""What a server said when it was last looked at, and who answers a request there."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from openclaw_rl.serving.engines.model_text import ModelText
from openclaw_rl.serving.engines.sglang import wire
from openclaw_rl.serving.engines.sglang.requirements import unmet_by_swaps


class Ask(Protocol):
    """One question to the server."""

    def __call__(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> Awaitable[dict[str, Any]]:
        """The answer; EngineError where there is none."""
        ...


class Base(Protocol):
    """The base model."""

    async def get(self) -> ModelText:
        """Its text side, and its directory."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """The name of a server's weights, those of its adapters, its limits. `no_swaps`: why no whole model may be put in
    the place of another there; empty where it may."""

    instance_id: str
    weights: str
    adapters: frozenset[str]
    context_length: int
    kept_tokens: int
    no_swaps: str

    @classmethod
    def of(cls, info: Mapping[str, Any], models: wire.Models, model: Mapping[str, Any]) -> Seen:
        """From the answers to /server_info, /v1/models and /model_info."""
        kept_tokens = info.get("sampling_mask_max_tokens")
        return cls(
            instance_id=wire.instance_of(info),
            weights=str(model.get("weight_version")),
            adapters=models.adapters,
            context_length=models.context_length,
            kept_tokens=kept_tokens if isinstance(kept_tokens, int) else 0,
            no_swaps="; ".join(unmet_by_swaps(info)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """Who answers a request: `version`, by the adapter of that name, or by the server's own weights (None)."""

    version: int
    adapter: str | None
    seen: Seen

    @property
    def salt(self) -> str | None:
        """Prefixes are shared under this name; None for the weights that the server was started with."""
        return None if self.seen.weights == wire.UNTOUCHED else self.seen.weights
