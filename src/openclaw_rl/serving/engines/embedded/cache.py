"""Keys and values of several sequences, each in a slot of its own, and the attention that reads them.

One forward pass takes the new tokens of many sequences, packed one after the other into a single row, so nothing is
padded and a piece of a long prompt shares the pass with the next tokens of others. `PackedStep` is the Transformers
`Cache` of one such pass: it writes the new keys and values into the slots. `slot_attention`, registered through
Transformers' own `AttentionInterface`, lets each sequence attend to its slot alone. No key is ever copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache

from openclaw_rl.config_sources import ConfigError

ATTENTION = "openclaw_slots"
_GROWTH = 256
"""Slots grow by at least so many tokens, and by half of what they have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KvShape:
    """The shape of keys and values in a model."""

    layers: int
    kv_heads: int
    head_dim: int
    groups: int
    """Query heads per key/value head."""
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: Any) -> KvShape:
        """Read it from a causal language model's configuration.

        Raises:
            ConfigError: the model attends through a sliding window, which slots do not offer.
        """
        config = model.config
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
            raise ConfigError(f"the embedded engine needs full attention in every layer, this model has {kinds}")
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        return cls(
            layers=config.num_hidden_layers,
            kv_heads=kv_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            groups=heads // kv_heads,
            dtype=model.dtype,
            device=model.device,
        )


class Slot:
    """One sequence: the tokens whose keys and values it holds, and under which version they were computed."""

    def __init__(self, shape: KvShape) -> None:
        self._shape = shape
        self.busy = False
        self.version = 0
        self.tokens: list[int] = []
        self.used_at = 0
        self.kv = self._allocate(0)

    @property
    def capacity(self) -> int:
        """Tokens that fit without growing."""
        return self.kv.shape[3]

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in all, keeping what is there."""
        if tokens <= self.capacity:
            return
        wanted = max(tokens, self.capacity + max(_GROWTH, self.capacity // 2))
        grown = self._allocate(-(-wanted // _GROWTH) * _GROWTH)
        grown[:, :, :, : len(self.tokens)] = self.kv[:, :, :, : len(self.tokens)]
        self.kv = grown

    @torch.inference_mode()  # memory that grew during a forward pass may be written in this mode only
    def copy_prefix(self, source: Slot, length: int) -> None:
        """Take over the first `length` tokens of `source`, whatever it goes on doing."""
        self.tokens = []
        self.reserve(length)
        self.kv[:, :, :, :length] = source.kv[:, :, :, :length]
        self.tokens = source.tokens[:length]

    def clear(self) -> None:
        """Forget the tokens; the memory stays for the next sequence."""
        self.tokens = []

    def _allocate(self, capacity: int) -> Tensor:
        s = self._shape
        return torch.empty(s.layers, 2, s.kv_heads, capacity, s.head_dim, dtype=s.dtype, device=s.device)


class SlotPool:
    """All slots. A finished sequence stays in its slot until another needs it, so that prefixes are reused."""

    def __init__(self, shape: KvShape, count: int) -> None:
        self.slots = [Slot(shape) for _ in range(count)]
        self._clock = 0

    @property
    def free(self) -> int:
        """Slots that no sequence is using."""
        return sum(not slot.busy for slot in self.slots)

    def take(self, tokens: Sequence[int], version: int, reusable: int) -> Slot:
        """A slot for `tokens` under `version`, holding already as many of its first `reusable` tokens as possible.

        A finished sequence is continued in place if at least half of it is wanted; otherwise its prefix is copied,
        so that a short common beginning (a system message) does not destroy a long memory.
        """
        source, shared = None, 0
        for slot in sorted(self.slots, key=lambda slot: slot.busy):  # of two alike rather a free one
            same = _common(slot.tokens, tokens, reusable) if slot.version == version else 0
            if same > shared:
                source, shared = slot, same
        free = [slot for slot in self.slots if not slot.busy]
        others = [slot for slot in free if slot is not source]
        if source is not None and not source.busy and (2 * shared >= len(source.tokens) or not others):
            taken = source
            del taken.tokens[shared:]
        else:
            taken = min(others, key=lambda slot: (bool(slot.tokens), slot.used_at))
            taken.clear()
            if source is not None:
                taken.copy_prefix(source, shared)
        taken.busy, taken.version = True, version
        return taken

    def release(self, slot: Slot) -> None:
        """The sequence is over; its tokens stay for reuse."""
        self._clock += 1
        slot.busy, slot.used_at = False, self._clock

    def forget(self, version: int) -> None:
        """Drop what was computed under a version that is gone."""
        for slot in self.slots:
            if slot.version == version and not slot.busy:
                slot.clear()


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """The new tokens of one sequence in a packed pass: positions `past` to `past + length` of its slot."""

    slot: Slot
    begin: int
    length: int
    past: int
    mask: Tensor | None
    """[groups * length, past + length] bool, None where every new token may see everything (a single one)."""


def segments_of(pieces: Sequence[tuple[Slot, int]], shape: KvShape) -> list[Segment]:
    """Lay out `pieces` (slot, number of new tokens) one after the other, growing slots as needed."""
    segments, begin = [], 0
    for slot, length in pieces:
        past = len(slot.tokens)
        slot.reserve(past + length)
        mask = None
        if length > 1:
            seen = torch.ones(length, past + length, dtype=torch.bool, device=shape.device).tril(past)
            mask = seen.repeat(shape.groups, 1)
        segments.append(Segment(slot=slot, begin=begin, length=length, past=past, mask=mask))
        begin += length
    return segments


class PackedStep(Cache):  # type: ignore[misc]
    """The cache of one forward pass: writes the packed keys and values where their slots want them."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        super().__init__(layers=[])
        self.segments = segments

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """`key_states`, `value_states` [1, kv_heads, T, head_dim], packed; returned as they are."""
        for s in self.segments:
            layer = s.slot.kv[layer_idx]
            layer[0, :, s.past : s.past + s.length] = key_states[0, :, s.begin : s.begin + s.length]
            layer[1, :, s.past : s.past + s.length] = value_states[0, :, s.begin : s.begin + s.length]
        return key_states, value_states

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
    _, heads, _, head_dim = query.shape
    kv_heads, layer = key.shape[1], int(module.layer_idx)  # type: ignore[arg-type]
    outputs = []
    for s in packed_step.segments:
        keys, values = s.slot.kv[layer]
        stacked = query[:, :, s.begin : s.begin + s.length].reshape(1, kv_heads, -1, head_dim)
        end = s.past + s.length
        attended = nn.functional.scaled_dot_product_attention(
            stacked, keys[None, :, :end], values[None, :, :end], attn_mask=s.mask, scale=scaling
        )
        outputs.append(attended.reshape(1, heads, s.length, head_dim))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return output.transpose(1, 2).contiguous(), None


def use_slot_attention(model: Any) -> None:
    """Let `model` attend through slots (Transformers' documented way to bring an attention function)."""
    AttentionInterface.register(ATTENTION, slot_attention)
    model.set_attn_implementation(ATTENTION)


def _common(held: Sequence[int], wanted: Sequence[int], limit: int) -> int:
    """The length of the common beginning of `held` and `wanted[:limit]`."""
    most = min(len(held), len(wanted), limit)
    for place in range(most):
        if held[place] != wanted[place]:
            return place
    return most
