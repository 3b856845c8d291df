"""Attention of one packed forward pass over slots.

One pass takes the new tokens of many sequences, packed one after the other into a single row, so nothing is padded
and a piece of a long prompt shares the pass with the next tokens of others. `PackedStep` is the Transformers `Cache`
of one such pass: it writes the new keys and values into the slots. `slot_attention`, registered through Transformers'
own `AttentionInterface`, lets each sequence attend to its slot alone: a piece of a prompt by itself, next tokens
together wherever their slots lie side by side and are about as long. No key is ever copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache

from openclaw_rl.serving.engines.embedded.cache import KvShape, Slot

ATTENTION = "openclaw_slots"
_LEAST_USE = 0.7
"""Next tokens attend together if at least this share of the keys that they read is their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """The new tokens of one sequence in a packed pass: positions `past` to `past + length` of its slot."""

    slot: Slot
    begin: int
    length: int
    past: int

    @property
    def end(self) -> int:
        """The tokens in the slot once these are in."""
        return self.past + self.length


@dataclass(frozen=True, kw_only=True, slots=True)
class Attended:
    """What one attention call computes: packed `rows`, over the first `length` keys of slots `first` to `last`."""

    rows: slice | Tensor
    count: int
    """New tokens of each slot."""
    first: int
    last: int
    length: int
    mask: Tensor | None
    """[groups * count, length] bool for one slot, [slots, 1, 1, length] for several; None: everything is seen."""


def segments_of(pieces: Sequence[tuple[Slot, int]]) -> list[Segment]:
    """Lay out `pieces` (slot, number of new tokens) one after the other, growing slots as needed."""
    segments, begin = [], 0
    for slot, length in pieces:
        past = len(slot.tokens)
        slot.reserve(past + length)
        segments.append(Segment(slot=slot, begin=begin, length=length, past=past))
        begin += length
    return segments


class PackedStep(Cache):  # type: ignore[misc]
    """The cache of one forward pass: writes the packed keys and values where their slots want them."""

    def __init__(self, segments: Sequence[Segment], shape: KvShape) -> None:
        super().__init__(layers=[])
        self._memory = segments[0].slot.memory
        capacity = self._memory.capacity
        places = [s.slot.index * capacity + s.past + offset for s in segments for offset in range(s.length)]
        self._places = torch.tensor(places, device=shape.device)
        self.attended = [_prompt_piece(s, shape) for s in segments if s.length > 1]
        self.attended += [_next_tokens(group, shape) for group in _side_by_side(segments)]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """`key_states`, `value_states` [1, kv_heads, T, head_dim], packed; returned as they are."""
        new = torch.stack((key_states[0], value_states[0])).permute(2, 0, 1, 3)
        self._memory.kv[layer_idx].flatten(0, 1).index_copy_(0, self._places, new)
        return key_states, value_states

    def layer(self, index: int) -> Tensor:
        """[2, slots, kv_heads, capacity, head_dim] of one layer, a view."""
        return self._memory.kv[index].permute(2, 0, 3, 1, 4)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are always given explicitly, so nothing is derived from this."""
        return 0


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    packed_step: PackedStep,
    **_kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of packed `query` [1, heads, T, head_dim], each segment over its own slot; [1, T, heads, head_dim].

    The query heads that share a key head are stacked along the time axis, so keys need not be repeated.
    """
    _, heads, tokens, head_dim = query.shape
    kv_heads = key.shape[1]
    keys, values = packed_step.layer(int(module.layer_idx))  # type: ignore[arg-type]
    output = query.new_empty(tokens, heads, head_dim)
    for a in packed_step.attended:
        slots = slice(a.first, a.last)
        asked = query[0, :, a.rows].reshape(heads, -1, a.count, head_dim).transpose(0, 1)  # [slots, heads, count, ·]
        attended = nn.functional.scaled_dot_product_attention(
            asked.reshape(a.last - a.first, kv_heads, -1, head_dim),
            keys[slots, :, : a.length],
            values[slots, :, : a.length],
            attn_mask=a.mask,
            scale=scaling,
        )
        output[a.rows] = attended.reshape(-1, heads, a.count, head_dim).transpose(1, 2).flatten(0, 1)
    return output[None], None


def use_slot_attention(model: Any) -> None:
    """Let `model` attend through slots (Transformers' documented way to bring an attention function)."""
    AttentionInterface.register(ATTENTION, slot_attention)
    model.set_attn_implementation(ATTENTION)


def _prompt_piece(s: Segment, shape: KvShape) -> Attended:
    """Several tokens of one sequence: each sees what came before it, and itself."""
    seen = torch.ones(s.length, s.end, dtype=torch.bool, device=shape.device).tril(s.past)
    return Attended(
        rows=slice(s.begin, s.begin + s.length),
        count=s.length,
        first=s.slot.index,
        last=s.slot.index + 1,
        length=s.end,
        mask=seen.repeat(shape.groups, 1),
    )


def _next_tokens(group: Sequence[Segment], shape: KvShape) -> Attended:
    """One token each of sequences in neighbouring slots: each sees the whole of its own, and nothing behind it."""
    length, begin = max(s.end for s in group), group[0].begin
    mask = None
    if any(s.end < length for s in group):
        for s in group:
            s.slot.make_finite(length)
        ends = torch.tensor([s.end for s in group], device=shape.device)
        seen = torch.arange(length, device=shape.device) < ends[:, None]
        mask = torch.zeros(seen.shape, dtype=shape.dtype, device=shape.device).masked_fill_(~seen, -torch.inf)
        mask = mask[:, None, None]
    in_order = all(s.begin == begin + place for place, s in enumerate(group))
    return Attended(
        rows=slice(begin, begin + len(group))
        if in_order
        else torch.tensor([s.begin for s in group], device=shape.device),
        count=1,
        first=group[0].slot.index,
        last=group[-1].slot.index + 1,
        length=length,
        mask=mask,
    )


def _side_by_side(segments: Sequence[Segment]) -> list[list[Segment]]:
    """The single tokens, in groups of neighbouring slots that read few keys that are not their own."""
    groups: list[list[Segment]] = []
    for s in sorted((s for s in segments if s.length == 1), key=lambda s: s.slot.index):
        last = groups[-1] if groups else []
        if last and last[-1].slot.index + 1 == s.slot.index and _use([*last, s]) >= _LEAST_USE:
            last.append(s)
        else:
            groups.append([s])
    return groups


def _use(group: Sequence[Segment]) -> float:
    return sum(s.end for s in group) / (len(group) * max(s.end for s in group))
