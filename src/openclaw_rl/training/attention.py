"""Attention within rows: several rows lie end to end in one forward pass, and no token looks into another's row.

A mask over the whole pass would be right too, but costs its length squared, mostly for pairs that it then forbids.
Here every row is attended to by itself, causally, through Transformers' own SDPA function and its fastest kernels.
It is registered under a name of its own and chosen for the trainer's model alone (Transformers' interface for
attention functions); a name without a mask function also tells Transformers to build no mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

ATTENTION = "openclaw_rl_rows"
"""The name under which `attend_within_rows` is registered."""


def attend_within_rows(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row_lengths: Sequence[int] | None = None,
    sliding_window: int | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Causal attention of each row to itself: [1, heads, T, D] three times -> [1, T, heads, D].

    Keys and values may have fewer heads (grouped queries). `row_lengths` sum to T; without them every batch row
    [B, heads, T, D] is one. `sliding_window`: how many tokens back, itself included, a token sees.

    Raises:
        ValueError: a mask was given, which this function would not honour, or the lengths do not add up.
    """
    if attention_mask is not None:
        raise ValueError("attention within rows takes no mask: rows are causal and are not padded")
    sdpa = AttentionInterface()["sdpa"]
    lengths = [query.shape[2]] if row_lengths is None else list(row_lengths)
    if sum(lengths) != query.shape[2]:
        raise ValueError(f"rows of {sum(lengths)} tokens in a pass of {query.shape[2]}")
    attended = []
    parts = zip(*(torch.split(tensor, lengths, dim=2) for tensor in (query, key, value)), strict=True)
    for length, (q, k, v) in zip(lengths, parts, strict=True):
        mask = _window(length, sliding_window, query.device)
        attended.append(sdpa(module, q, k, v, mask, is_causal=mask is None, **arguments)[0])
    return attended[0] if len(attended) == 1 else torch.cat(attended, dim=1), None


def _window(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """The mask [1, 1, length, length] of a sliding window (True: visible), or None where the row fits into it."""
    if window is None or length <= window:
        return None
    places = torch.arange(length, device=device)
    back = places.unsqueeze(-1) - places
    return ((back >= 0) & (back < window))[None, None]


AttentionInterface.register(ATTENTION, attend_within_rows)
