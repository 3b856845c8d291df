"""What a claim makes of the rollouts of a group, and of a budget of tokens."""

from __future__ import annotations

import pytest

from openclaw_rl.rollout.samples import build_sample
from openclaw_rl.store import Store
from openclaw_rl.store.rollouts import whole_groups
from openclaw_rl.store.samples import within
from openclaw_rl.types import Method, Sample, TurnState
from tests.builders import TOKENS, make_judgement, make_request, make_turn, user

EACH = len(TOKENS.prompt_ids) + len(TOKENS.response_ids)
"""Tokens of every sample here."""


def to_samples(store: Store, *names: str) -> None:
    """Ready samples of these turns, the first the oldest; `g2` is of rollout 2 of group `g`, `-a` of no group."""
    for place, name in enumerate(names):
        group, number = name[0], name[1:]
        request = make_request(name, session_id=f"session-{name}")
        store.turns.record_request(request, client_session_id=f"named-{name}")
        if group != "-":
            store.rollouts.begin(
                f"named-{name}",
                key_id=request.key_id,
                group_id=group,
                task_id=group,
                number=int(number),
                attempt=1,
                judged=True,
            )
            store.rollouts.end(f"named-{name}", turn_ids=[name], reward=1.0)
        turn = make_turn(request=request)
        store.turns.record_turn(turn, context_hash=f"hash-{name}")
        store.turns.move(name, TurnState.AWAITING_NEXT_STATE)
        store.turns.set_next_state(name, f"{name}-next", [user("No.")])
        sample = build_sample(turn, make_judgement(name), Method.COMBINE, now=1000.0 + place)
        assert isinstance(sample, Sample)
        store.samples.add(sample)


def claimed(store: Store, size: int, samples: float | None = None) -> list[str]:
    """The turns that are claimed with a budget of so many samples; they are claimed no longer."""
    budget = None if samples is None else int(samples * EACH)
    found = [sample.turn_id for sample in store.samples.claim(size, 60.0, max_tokens=budget)]
    store.samples.release_claims()
    return found


@pytest.mark.parametrize(
    ("budget", "fitting"),
    [(None, ["a", "b", "c", "d"]), (10, ["a", "b", "c", "d"]), (9, ["a", "b", "c"]), (8, ["a"]), (1, ["a"])],
)
def test_a_budget_takes_whole_groups_from_the_front(budget: int | None, fitting: list[str]) -> None:
    tokens = {"a": 2, "b": 3, "c": 4, "d": 1}
    assert within([["a"], ["b", "c"], ["d"]], tokens, budget) == fitting


def test_a_group_that_does_not_fit_waits_whole_and_nothing_overtakes_it(store: Store) -> None:
    to_samples(store, "-a", "g1", "g2", "g3", "-b")
    assert claimed(store, 9) == ["-a", "g1", "g2", "g3", "-b"]
    assert claimed(store, 9, 4) == ["-a", "g1", "g2", "g3"]
    assert claimed(store, 9, 3) == ["-a"]


def test_a_group_above_the_budget_is_a_step_by_itself(store: Store) -> None:
    to_samples(store, "g1", "g2", "g3", "-a")
    for samples in (0.5, 1, 2.5, 3):
        assert claimed(store, 9, samples) == ["g1", "g2", "g3"]


def test_a_group_that_lies_among_others_is_together(store: Store) -> None:
    to_samples(store, "g1", "-a", "g2", "-b")
    assert claimed(store, 9, 2) == ["g1", "g2"]
    assert claimed(store, 9, 3) == ["g1", "-a", "g2"]  # in the order of their age


def test_the_size_of_a_batch_cuts_no_group_but_one_that_is_more_than_a_batch(store: Store) -> None:
    to_samples(store, "-a", "g1", "g2", "g3", "-b")
    assert claimed(store, 3) == ["-a"]
    with store.samples._database.read() as connection:
        assert whole_groups(connection, ["g1", "g2", "g3", "-b"]) == [["g1", "g2", "g3"], ["-b"]]
        assert whole_groups(connection, ["g1", "g2"]) == [["g1", "g2"]]


def test_what_is_more_than_a_batch_is_trained_part_by_part_all_the_same(store: Store) -> None:
    to_samples(store, "g1", "g2", "g3")
    assert claimed(store, 2) == ["g1", "g2"]
    assert claimed(store, 2, 1) == ["g1", "g2"]
