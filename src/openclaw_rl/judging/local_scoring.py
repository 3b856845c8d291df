"""Rendering and scoring in this process, for fitting a head and for measuring without a running engine.

It keeps the cache of one prefix, as the engine does: a probe's examples are read once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from openclaw_rl.models import load_causal_lm, load_tokenizer
from openclaw_rl.serving.engines.protocol import ScoreRequest, ScoreResult
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.types import Message


class LocalScoring:
    """The base model of a directory, one request at a time."""

    def __init__(self, path: Path) -> None:
        self._renderer = Renderer(load_tokenizer(path))
        self._model = load_causal_lm(path)
        self._kept: dict[tuple[int, ...], Any] = {}
        self._last: tuple[tuple[int, ...], torch.Tensor] | None = None

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[Message, ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """Token ids of a chat."""
        return self._renderer.render(messages, tools, generation_prompt)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probabilities of the tokens from `start` on (temperature 1 only)."""
        if request.temperature != 1.0:
            raise ValueError("local scoring knows temperature 1 only")
        targets = torch.tensor(request.ids[request.start :])
        logprobs = self._after(request.ids[:-1], len(targets))
        return ScoreResult(logprobs=tuple(logprobs.gather(1, targets[:, None])[:, 0].tolist()))

    @torch.inference_mode()
    def _after(self, context: tuple[int, ...], positions: int) -> torch.Tensor:
        """Log-probabilities [positions, V] of what follows each of the context's last positions.

        Those after the same context are kept, for two verdict words are asked one after the other.
        """
        if self._last is None or self._last[0] != context or len(self._last[1]) != positions:
            prefix = self._prefix(context[: len(context) - positions + 1])
            rest = context[len(prefix) :]
            cache = self._kept[prefix]
            output = self._model(
                torch.tensor([rest]), past_key_values=cache, use_cache=True, logits_to_keep=positions
            )
            cache.crop(-len(rest))
            self._last = (context, torch.log_softmax(output.logits[0], dim=-1))
        return self._last[1]

    def _prefix(self, context: tuple[int, ...]) -> tuple[int, ...]:
        """The longest kept prefix of the context, short of its last token; where it is short, a new one is read."""
        room = context[:-1]
        best = max((kept for kept in self._kept if room[: len(kept)] == kept), key=len, default=())
        if len(best) < len(room) // 2:
            best = room[: max(1, len(room) - 40)]
            self._kept[best] = self._model(torch.tensor([best]), use_cache=True).past_key_values
        return best

    async def close(self) -> None:
        """Nothing is held open."""
