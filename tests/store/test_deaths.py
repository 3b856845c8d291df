"""Deaths of the trainer, counted for each sample and place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.store import Store
from openclaw_rl.store.deaths import Death
from openclaw_rl.store.schema import MAX_PLACE
from openclaw_rl.types import InvalidTransition
from tests.store.helpers import to_sample


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.sqlite")
    to_sample(opened, "t1", "t2", "t3")
    yield opened
    opened.close()


def test_deaths_are_counted_by_sample_and_place(store: Store) -> None:
    store.deaths.note(["t1", "t2"], "a", alone=False)
    store.deaths.note(["t1"], "a", alone=True)
    store.deaths.note(["t1"], "b" * 100, alone=False)
    found = store.deaths.of(["t1", "t2", "t3"])
    assert sorted(found["t1"], key=lambda death: death.place) == [
        Death(place="a", number=2, alone=True),
        Death(place="b" * MAX_PLACE, number=1, alone=False),
    ]
    assert found["t2"] == [Death(place="a", number=1, alone=False)]
    assert "t3" not in found
    assert store.status.counts().counters["trainer_deaths"] == 3
    store.deaths.note(["t1"], "a", alone=False)  # in company again
    assert Death(place="a", number=3, alone=False) in store.deaths.of(["t1"])["t1"]


def test_what_came_through_is_cleared_and_nothing_else(store: Store) -> None:
    store.deaths.note(["t1", "t2"], "a", alone=False)
    store.deaths.forget(["t1", "t3"])
    assert list(store.deaths.of(["t1", "t2", "t3"])) == ["t2"]


def test_who_deletes_a_session_deletes_its_deaths(store: Store) -> None:
    store.deaths.note(["t1", "t2"], "a", alone=False)
    turn = store.turns.get("t1")
    assert turn is not None
    store.erasure.delete([turn.request.session_id], trainer_lives=True)
    assert store.deaths.of(["t1", "t2"]) == {}


def test_samples_given_back_wait_again(store: Store) -> None:
    store.samples.claim(2, 60.0)
    store.samples.give_back(["t2"])
    assert store.samples.ready().count == 2
    with pytest.raises(InvalidTransition):
        store.samples.give_back(["t3"])
