"""Waiting for the last updates: as long as something goes forward, not for so many seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from openclaw_rl.evaluation.settling import Settling, Standing, wait_until_settled


def standing(trained: int, *pending: str) -> Standing:
    return Standing(pending=pending, arrived=(trained,))


def waited(seen: Iterable[Standing], *, step_s: float = 100.0, limit_s: float = 3600.0) -> Settling:
    """Wait, with 300 s of patience, while a look finds these, the last of them again and again, `step_s` apart."""
    now = -step_s
    left = iter(seen)
    last = standing(0)

    async def look() -> Standing:
        nonlocal now, last
        now += step_s
        last = next(left, last)
        return last

    waiting = wait_until_settled(look, standstill_s=300.0, limit_s=limit_s, poll_s=0.0, clock=lambda: max(0.0, now))
    return asyncio.run(waiting)


def test_it_ends_when_twice_in_a_row_nothing_is_on_its_way() -> None:
    found = waited([standing(4, "a step"), standing(8), standing(8, "a version"), standing(8), standing(8)])
    assert (found.settled, found.waited_s, found.words()) == (True, 400.0, "")


def test_a_slow_machine_is_waited_for_as_long_as_it_gets_somewhere() -> None:
    slow = [standing(4 * step, "18 samples to be trained") for step in range(15) for _ in range(2)]
    found = waited([*slow, standing(60)])
    assert found.settled
    assert found.waited_s > 2500


def test_a_standstill_is_given_up_and_said_in_words() -> None:
    found = waited([standing(4, "a step on 4 samples"), standing(8, "a step on 4 samples")])
    assert not found.settled
    assert (found.waited_s, found.still_s) == (400.0, 300.0)
    assert found.words() == (
        "given up after 6 min 40 s, the last 5 min 0 s of them without an answer judged, a sample trained or an "
        "update: a step on 4 samples"
    )


def test_nothing_is_waited_for_beyond_the_limit() -> None:
    found = waited((standing(number, "a step") for number in range(1000)), limit_s=1000.0)
    assert (found.settled, found.waited_s, found.still_s) == (False, 1000.0, 0.0)
