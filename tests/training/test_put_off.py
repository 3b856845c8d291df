"""What failed is tried again after ever longer pauses, by owner."""

from __future__ import annotations

from openclaw_rl.training.put_off import PutOff


def test_pauses_grow_by_owner_until_it_came_through() -> None:
    now = [0.0]
    put_off = PutOff(pause_s=1.0, max_pause_s=3.0, clock=lambda: now[0])
    for pause, first in ((1.0, True), (2.0, False), (3.0, False), (3.0, False)):
        assert put_off.put("ann", "a file") is first
        assert put_off.words("ann") == "a file"
        assert put_off.owners() == {"ann"}
        now[0] += pause - 0.1
        assert put_off.owners() == {"ann"}
        now[0] += 0.1
        assert put_off.owners() == set()
        assert put_off.words("ann") == "a file"
    assert put_off.words("bob") is None
    put_off.done("ann")
    assert put_off.put("ann", "a file")
    put_off.done("ann")
    assert put_off.owners() == set()
    assert put_off.words("ann") is None
