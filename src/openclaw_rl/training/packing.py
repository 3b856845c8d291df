"""Sequences to forward passes: no padding, and no token of a conversation computed twice.

A *row* is what one causal pass reads from its first token on. Turns of a session whose prompts extend one another,
token by token, share one row: the first prompt, its response, what came next, the second response, and so on. So a
session costs its own length and not the sum over its turns of all that came before. Which turns do is found by
comparing ids; nothing else is believed. A *pack* is some rows end to end: one forward pass, cut to a budget of
tokens. Neither changes what is computed for a response token (see `attention`), only what it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from openclaw_rl.training.batch import TokenSequence, moved


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Where a response lies: its `length` tokens are predicted from `position` of the row on, and are those from
    `start` of the flat row on.
    """

    position: int
    start: int
    length: int


@dataclass(kw_only=True, slots=True)
class Row:
    """Token ids to read, and the responses in them. The last response token of a row is predicted and never read."""

    ids: tuple[int, ...] = ()
    spans: list[Span] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, sequence: TokenSequence) -> None:
        """Go on with a sequence whose prompt begins with all of this row."""
        self.ids = _read(sequence)
        position = len(sequence.prompt_ids) - 1
        self.spans.append(Span(position=position, start=sequence.start, length=len(sequence.response_ids)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """Rows end to end, for one forward pass.

    `input_ids`, `position_ids` [1, T], the latter counted from each row's beginning; `row_lengths` sum to T. For each
    of its R response tokens: `positions` [R] where the hidden state that predicts it lies, and `flat` [R] its place
    in the flat row.
    """

    input_ids: Tensor
    position_ids: Tensor
    row_lengths: tuple[int, ...]
    positions: Tensor
    flat: Tensor

    def __len__(self) -> int:
        return self.input_ids.shape[1]


def plan_packs(
    sequences: Sequence[TokenSequence],
    max_tokens: int,
    device: torch.device | str = "cpu",
    *,
    rows_per_pack: int | None = None,
) -> list[Pack]:
    """The sequences as rows, and the rows in packs of at most `max_tokens` tokens, on `device`.

    First-fit decreasing. A row longer than `max_tokens` is a pack of its own. Longest first, so that a batch which
    does not fit in memory fails at its beginning.
    """
    packs: list[list[Row]] = []
    for row in sorted(chain_rows(sequences), key=len, reverse=True):
        for rows in packs:
            if sum(map(len, rows)) + len(row) <= max_tokens and len(rows) != rows_per_pack:
                rows.append(row)
                break
        else:
            packs.append([row])
    return [moved(_lay(rows), device) for rows in packs]


def chain_rows(sequences: Sequence[TokenSequence]) -> list[Row]:
    """The fewest tokens that hold all sequences: each goes on with the longest row that its prompt begins with.

    In lexicographic order whatever begins with a row's ids follows it at once, so the rows that can still be gone on
    with, on the way to a sequence, are a stack, each the beginning of the next. A row that is gone on with is on it
    no more: of two answers to one prompt each has a row of its own, for they must not see each other.
    """
    rows: list[Row] = []
    stack: list[Row] = []
    for sequence in sorted(sequences, key=lambda sequence: (_read(sequence), sequence.start)):
        ids = _read(sequence)
        while stack and ids[: len(stack[-1])] != stack[-1].ids:
            stack.pop()
        within = [place for place, row in enumerate(stack) if len(row) <= len(sequence.prompt_ids)]
        if within:
            row = stack.pop(within[-1])
        else:
            row = Row()
            rows.append(row)
        row.extend(sequence)
        stack.append(row)
    return rows


def _read(sequence: TokenSequence) -> tuple[int, ...]:
    """What must be read to predict all of a response: everything but its last token."""
    return sequence.prompt_ids + sequence.response_ids[:-1]


def _lay(rows: Sequence[Row]) -> Pack:
    positions, flat = [], []
    begin = 0
    for row in rows:
        for span in row.spans:
            positions.append(torch.arange(span.length) + begin + span.position)
            flat.append(torch.arange(span.length) + span.start)
        begin += len(row)
    return Pack(
        input_ids=torch.tensor([[token for row in rows for token in row.ids]]),
        position_ids=torch.cat([torch.arange(len(row)) for row in rows]).unsqueeze(0),
        row_lengths=tuple(map(len, rows)),
        positions=torch.cat(positions),
        flat=torch.cat(flat),
    )
