"""Keys and values of several sequences, each in a slot of its own.

All slots lie in one block of memory, so that one operation writes the new tokens of a whole pass, and one attends for
many slots that lie side by side (`slot_attention`). The block grows when a sequence outgrows it; on a CPU what
nobody has written yet costs address space only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.config_sources import ConfigError

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


class SlotMemory:
    """The block of all slots: `kv` [layers, slots, capacity, 2, kv_heads, head_dim]."""

    def __init__(self, shape: KvShape, count: int) -> None:
        self._shape = shape
        self._count = count
        self.kv = self._allocate(0)

    @property
    def capacity(self) -> int:
        """Tokens that fit into each slot without growing."""
        return self.kv.shape[2]

    def reserve(self, tokens: int, held: Sequence[int]) -> None:
        """Make room for `tokens` in each slot, keeping the first `held` tokens of each."""
        if tokens <= self.capacity:
            return
        wanted = max(tokens, self.capacity + max(_GROWTH, self.capacity // 2))
        grown = self._allocate(-(-wanted // _GROWTH) * _GROWTH)
        for slot, length in enumerate(held):
            grown[:, slot, :length] = self.kv[:, slot, :length]
        self.kv = grown

    def _allocate(self, capacity: int) -> Tensor:
        s = self._shape
        size = (s.layers, self._count, capacity, 2, s.kv_heads, s.head_dim)
        return torch.empty(size, dtype=s.dtype, device=s.device)


class Slot:
    """One sequence: the tokens whose keys and values it holds, and under which version they were computed."""

    def __init__(self, pool: SlotPool, index: int) -> None:
        self._pool = pool
        self.index = index
        self.busy = False
        self.version = 0
        self.tokens: list[int] = []
        self.used_at = 0
        self._finite = 0

    @property
    def memory(self) -> SlotMemory:
        """The block in which it lies."""
        return self._pool.memory

    @property
    def kv(self) -> Tensor:
        """[layers, capacity, 2, kv_heads, head_dim], a view."""
        return self.memory.kv[:, self.index]

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in all, keeping what is there."""
        if tokens > self.memory.capacity:
            self.memory.reserve(tokens, [len(slot.tokens) for slot in self._pool.slots])
            for slot in self._pool.slots:
                slot._finite = 0  # what was not copied is memory as it came

    @torch.inference_mode()
    def make_finite(self, tokens: int) -> None:
        """See to it that the first `tokens` places hold numbers: those that are masked out are still multiplied."""
        begin = max(self._finite, len(self.tokens))
        if begin < tokens:
            end = min(self.memory.capacity, tokens + _GROWTH)
            self.kv[:, begin:end] = 0.0
            self._finite = end

    @torch.inference_mode()  # memory that grew during a forward pass may be written in this mode only
    def copy_prefix(self, source: Slot, length: int) -> None:
        """Take over the first `length` tokens of `source`, whatever it goes on doing."""
        self.tokens = []
        self.reserve(length)
        self.kv[:, :length] = source.kv[:, :length]
        self.tokens = source.tokens[:length]

    def clear(self) -> None:
        """Forget the tokens; the memory stays for the next sequence. What is in it need not be finite."""
        self.tokens = []
        self._finite = 0


class SlotPool:
    """All slots. A finished sequence stays in its slot until another needs it, so that prefixes are reused."""

    def __init__(self, shape: KvShape, count: int) -> None:
        self.memory = SlotMemory(shape, count)
        self.slots = [Slot(self, index) for index in range(count)]
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


def _common(held: Sequence[int], wanted: Sequence[int], limit: int) -> int:
    """The length of the common beginning of `held` and `wanted[:limit]`."""
    most = min(len(held), len(wanted), limit)
    for place in range(most):
        if held[place] != wanted[place]:
            return place
    return most
