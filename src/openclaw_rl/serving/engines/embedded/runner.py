"""A forward pass over the new tokens of several sequences, each under its own policy version.

The base and all adapters over it share one pass; every version that is a whole model has a pass of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.serving.engines.embedded.adapters import AdapterPool
from openclaw_rl.serving.engines.embedded.cache import KvShape, Slot
from openclaw_rl.serving.engines.embedded.slot_attention import PackedStep, segments_of, use_slot_attention


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """New tokens of one sequence, and for which of them logits are wanted (offsets into `tokens`)."""

    slot: Slot
    version: int
    tokens: Sequence[int]
    wanted: Sequence[int]


class ModelRunner:
    """The base with its adapters, and whole models beside it. Only the compute thread may call it."""

    def __init__(self, model: Any, adapters: AdapterPool) -> None:
        use_slot_attention(model)
        self._model = model
        self._adapters = adapters
        self.shape = KvShape.of(model)

    @torch.inference_mode()
    def forward(self, pieces: Sequence[Piece]) -> list[Tensor]:
        """Run `pieces` and note their tokens in their slots; logits [len(wanted), V] of each, on the CPU.

        Pieces of one version should stand together: each run of them costs small matrix products of its own.
        """
        found: dict[int, Tensor] = {}
        models = {piece.version: self._adapters.model_of(piece.version) for piece in pieces}
        for model in {id(model): model for model in models.values()}.values():
            places = [place for place, piece in enumerate(pieces) if models[piece.version] is model]
            logits = self._pass([pieces[place] for place in places], model)
            found.update(zip(places, logits, strict=True))
        return [found[place] for place in range(len(pieces))]

    def _pass(self, pieces: Sequence[Piece], whole: Any | None) -> list[Tensor]:
        """Run pieces of one model: a whole version's, or (None) the base with its adapters."""
        segments = segments_of([(piece.slot, len(piece.tokens)) for piece in pieces])
        ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for segment, piece in zip(segments, pieces, strict=True):
            ids += piece.tokens
            positions += range(segment.past, segment.past + segment.length)
            wanted += [segment.begin + offset for offset in piece.wanted]
        device = self.shape.device
        step = PackedStep(segments, self.shape)
        with self._adapters.applied([] if whole is not None else _runs(pieces)):
            output = (self._model if whole is None else whole)(
                input_ids=torch.tensor([ids], device=device),
                position_ids=torch.tensor([positions], device=device),
                cache=step,
                use_cache=True,
                logits_to_keep=torch.tensor(wanted, dtype=torch.long, device=device),
                packed_step=step,
            )
        for piece in pieces:
            piece.slot.tokens += piece.tokens
        logits: Tensor = output.logits[0].cpu()
        return list(torch.split(logits, [len(piece.wanted) for piece in pieces]))


def _runs(pieces: Sequence[Piece]) -> list[tuple[int, int, int]]:
    """(begin, end, version) of neighbouring tokens of one version."""
    runs, begin = [], 0
    for version, group in groupby(pieces, key=lambda piece: piece.version):
        end = begin + sum(len(piece.tokens) for piece in group)
        runs.append((begin, end, version))
        begin = end
    return runs
