from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.packing import chain_rows, plan_packs


def sequences(pairs: list[tuple[list[int], list[int]]]) -> list[TokenSequence]:
    """Prompts and responses, one after the other in the flat row."""
    found, start = [], 0
    for prompt, response in pairs:
        found.append(TokenSequence(prompt_ids=tuple(prompt), response_ids=tuple(response), start=start))
        start += len(response)
    return found


few_ids = st.lists(st.integers(1, 2), min_size=1, max_size=5)
"""Of so few different ids that prompts often begin with one another."""


@given(st.lists(st.tuples(few_ids, few_ids), min_size=1, max_size=9), st.integers(1, 30))
def test_every_response_token_is_predicted_once_after_its_own_context(
    pairs: list[tuple[list[int], list[int]]], budget: int
) -> None:
    given_sequences = sequences(pairs)
    contexts = [[*s.prompt_ids, *s.response_ids[:i]] for s in given_sequences for i in range(len(s.response_ids))]
    found: dict[int, list[int]] = {}
    for pack in plan_packs(given_sequences, budget):
        assert len(pack) == sum(pack.row_lengths)
        assert len(pack) <= budget or len(pack.row_lengths) == 1
        ids = pack.input_ids[0].tolist()
        for position, flat in zip(pack.positions.tolist(), pack.flat.tolist(), strict=True):
            begin = position - int(pack.position_ids[0, position])
            assert flat not in found
            found[flat] = ids[begin : position + 1]
        ends = [sum(pack.row_lengths[: i + 1]) for i in range(len(pack.row_lengths))]
        begins = [end - length for end, length in zip(ends, pack.row_lengths, strict=True)]
        assert [i for i, place in enumerate(pack.position_ids[0].tolist()) if place == 0] == begins
    assert [found[i] for i in range(len(contexts))] == contexts


def test_a_session_is_one_row_as_long_as_its_last_turn() -> None:
    first, second = [1, 2, 3], [4, 5]
    third = [*first, *second, 9, 9]
    turns = sequences([(third, [6, 6]), (first, second), ([*third, 6, 6, 8], [7])])
    (row,) = chain_rows(turns)
    assert row.ids == (1, 2, 3, 4, 5, 9, 9, 6, 6, 8)
    assert [(span.position, span.start, span.length) for span in row.spans] == [(2, 2, 2), (6, 0, 2), (9, 4, 1)]


def test_answers_to_one_prompt_do_not_see_each_other() -> None:
    rows = chain_rows(sequences([([1, 2], [3, 3]), ([1, 2], [4, 4]), ([1, 2, 4, 4, 5], [6])]))
    assert sorted(row.ids for row in rows) == [(1, 2, 3), (1, 2, 4, 4, 5)]


def test_a_changed_token_breaks_the_chain() -> None:
    """A prompt that a client edited, or that was rendered otherwise, is a row of its own."""
    rows = chain_rows(sequences([([1, 2], [3, 4, 5]), ([1, 2, 3, 9, 5, 6], [7])]))
    assert len(rows) == 2


def test_what_replaces_a_last_token_does_not_break_it() -> None:
    """That token is predicted and not read: an answer cut off by its length goes on with the template's end."""
    (row,) = chain_rows(sequences([([1, 2], [3, 4]), ([1, 2, 3, 8, 5], [6, 7])]))
    assert row.ids == (1, 2, 3, 8, 5, 6)
    assert [(span.position, span.start) for span in row.spans] == [(1, 0), (4, 2)]


def test_packs_hold_no_padding_and_fill_the_budget() -> None:
    pairs = [([i] * (length - 1), [99, 98]) for i, length in enumerate([90, 60, 50, 40, 10], start=1)]
    packs = plan_packs(sequences(pairs), 100)
    assert [pack.row_lengths for pack in packs] == [(91 - 1, 10), (60, 40), (50,)]
    apart = plan_packs(sequences(pairs), 100, rows_per_pack=1)
    assert [pack.row_lengths for pack in apart] == [(90,), (60,), (50,), (40,), (10,)]


def test_demanding_orders_are_quick() -> None:
    """A long session whose turns come in any order: every prompt begins with all earlier ones."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 1000, (4000,), generator=generator).tolist()
    order = torch.randperm(100, generator=generator).tolist()
    (row,) = chain_rows(sequences([(ids[: 40 * i + 20], ids[40 * i + 20 : 40 * i + 40]) for i in order]))
    assert len(row) == 3999
    assert len(row.spans) == 100
