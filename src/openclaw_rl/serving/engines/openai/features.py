"""What an upstream turned out to have, and the sentence that `status` says of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from openclaw_rl.serving.engines.protocol import EngineCapabilities


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """Found by asking. `context_length` None: the upstream does not say."""

    token_ids: bool
    logprobs: bool
    lora_versions: bool
    context_length: int | None = None

    @property
    def trainable(self) -> bool:
        """Whether its answers can be trained at all."""
        return self.token_ids and self.logprobs

    @property
    def capabilities(self) -> EngineCapabilities:
        """The same for the engine protocol. Log-probabilities without ids are of no use to us."""
        return EngineCapabilities(
            token_ids=self.token_ids,
            logprobs=self.trainable,
            lora_versions=self.lora_versions,
            score=False,
            render=False,
            tools=True,  # passed on: the upstream refuses them itself where it has none
        )

    def words(self) -> str:
        """Which kind of upstream it is, for people."""
        if not self.token_ids:
            return "served and judged, not trainable: the upstream returns no token ids"
        if not self.logprobs:
            return "served and judged, not trainable: the upstream returns no log-probabilities"
        if not self.lora_versions:
            return "served and judged; the upstream returns token ids and log-probabilities, but loads no versions"
        return "served, judged and trainable: the upstream returns token ids and log-probabilities, loads versions"


@runtime_checkable
class LearnsFromAnswers(Protocol):
    """An adapter that goes on finding out what its upstream has, for those who see no answers themselves."""

    @property
    def url(self) -> str:
        """The upstream's, as in `engine.urls`."""
        ...

    @property
    def told(self) -> Mapping[str, bool]:
        """What answers have told so far, of `token_ids` and of `logprobs`; nothing of what is in doubt yet."""
        ...


HOPED_FOR = Features(token_ids=True, logprobs=True, lora_versions=True)
"""Before anything was asked."""
