"""How old samples are: counted along what the version in service was built on, not by the numbers of versions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.store import Store
from openclaw_rl.training.cycle import TrainingLoop
from openclaw_rl.training.line import Line, line_of
from openclaw_rl.types import PolicyVersion, SampleState, VersionState
from tests.training.support import into_store, make_sample, tiny_trainer
from tests.training.test_cycle import RefusingPublisher, make_config, make_loop
from tests.training.test_turns_of_owners import config_of, give

NUMBERS = count(1000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


def version(number: int, basis: int) -> PolicyVersion:
    return PolicyVersion(
        version=number, state=VersionState.RETIRED, path="x", step=number, created_at=float(number), basis=basis
    )


@given(st.data(), st.integers(min_value=1, max_value=20), st.integers(min_value=1, max_value=6))
def test_an_age_is_the_number_of_versions_built_since(data: st.DataObject, last: int, staleness: int) -> None:
    basis = {number: data.draw(st.integers(min_value=0, max_value=number - 1)) for number in range(1, last + 1)}
    if data.draw(st.booleans()):  # no gap
        basis = {number: number - 1 for number in basis}
    versions = [version(number, before) for number, before in basis.items()]
    numbers = [last]
    while basis[numbers[-1]]:
        numbers.append(basis[numbers[-1]])
    found = Line.of(line_of(last, versions, {}))
    assert (found.versions is None) == (numbers == list(range(last, 0, -1)))
    grown, now = Line(), 0  # as the loop does it, step by step
    for number in reversed(numbers):
        grown, now = grown.and_then(number, now), number
    assert grown == found
    for drawn in range(last + 1):
        age = sum(number > drawn for number in numbers)
        assert found.age(drawn, last) == age
        assert (drawn >= found.oldest_allowed(last, staleness)) == (age <= staleness)
    assert [found.age(number, last) for number in numbers] == list(range(len(numbers)))


def draw(store: Store, number: int, *, owner: str = "") -> None:
    """So many ready samples, drawn by the owner's version in service."""
    trainer = tiny_trainer()
    trainer.step_number = store.versions.serving(owner).version
    for _ in range(number):
        if owner:
            give(store, owner, next(NUMBERS), version=trainer.step_number)
        else:
            into_store(store, make_sample(trainer, name := next(NUMBERS), reward=1.0 if name % 2 else -1.0))


def take_steps(loop: TrainingLoop, store: Store, number: int, *, owner: str = "") -> None:
    for _ in range(number):
        draw(store, 2, owner=owner)
        assert loop.cycle()


def last_staleness(store: Store) -> float:
    return store.samples.steps()[-1].metrics["staleness_max"]


@pytest.mark.parametrize("back_to", [0, 1])
def test_a_rollback_far_back_makes_nothing_too_old_that_is_drawn_after_it(
    tmp_path: Path, store: Store, back_to: int
) -> None:
    loop = make_loop(make_config(tmp_path, max_staleness=1), store)
    loop.resume()
    take_steps(loop, store, 4)
    store.versions.roll_back(back_to)
    draw(store, 3)
    assert loop.cycle()
    assert store.versions.serving().version == 5
    assert last_staleness(store) == 0.0
    draw(store, 1)  # beside the one that was drawn one version ago
    assert loop.cycle()
    assert last_staleness(store) == 1.0
    assert store.status.counts().samples_by_state == {SampleState.TRAINED: 12}


@pytest.mark.parametrize("anew", [False, True])
def test_what_was_refused_makes_nothing_older(tmp_path: Path, store: Store, anew: bool) -> None:
    config = make_config(tmp_path, max_staleness=1)
    loop = make_loop(config, store)
    loop._candidates.publisher = RefusingPublisher(store, 2, 3, 4)
    loop.resume()
    take_steps(loop, store, 4)
    assert store.versions.serving().version == 1
    if anew:
        loop = make_loop(config, store)
        loop.resume()
    take_steps(loop, store, 1)
    assert store.versions.serving().version == 5
    assert last_staleness(store) == 0.0
    draw(store, 3)
    assert loop.cycle()
    draw(store, 1)
    assert loop.cycle()  # step 7, with one of version 5
    assert last_staleness(store) == 1.0
    assert SampleState.EXPIRED not in store.status.counts().samples_by_state


def test_a_surplus_expires_once_so_many_versions_were_built_since(tmp_path: Path, store: Store) -> None:
    loop = make_loop(make_config(tmp_path, max_staleness=1), store)
    loop._candidates.publisher = RefusingPublisher(store, 2, 3)
    loop.resume()
    draw(store, 9)
    for step in range(1, 5):
        assert loop.cycle()
        assert last_staleness(store) == (0.0 if step == 1 else 1.0)
    assert store.versions.serving().version == 4
    assert store.samples.ready().count == 1
    assert not loop.cycle()  # drawn two versions ago
    assert store.status.counts().samples_by_state == {SampleState.TRAINED: 8, SampleState.EXPIRED: 1}


def test_an_owners_samples_grow_old_by_the_owners_own_line(tmp_path: Path, store: Store) -> None:
    loop = make_loop(config_of(tmp_path, max_staleness=1), store)
    loop._candidates.publisher = RefusingPublisher(store, 2, 4, 5)
    loop.resume()
    for owner in ("ann", "ann", "bob", "ann", "ann"):  # three of ann's are refused
        take_steps(loop, store, 1, owner=owner)
    assert store.versions.serving("ann").version == 1
    take_steps(loop, store, 2, owner="ann")
    assert store.versions.serving("ann").version == 7
    store.versions.roll_back(0, "ann")
    take_steps(loop, store, 1, owner="ann")
    assert store.versions.serving("ann").version == 8
    assert [step.metrics["staleness_max"] for step in store.samples.steps()] == [0.0] * 8
    assert SampleState.EXPIRED not in store.status.counts().samples_by_state
