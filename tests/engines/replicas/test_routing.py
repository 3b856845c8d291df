from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.serving.engines.replicas.routing import preference

names = st.sets(st.text(min_size=1, max_size=12), min_size=2, max_size=8)
sessions = st.lists(st.text(max_size=20), min_size=1, max_size=40)


@given(names, sessions, st.data())
def test_a_replica_that_leaves_moves_only_its_own_sessions(
    replicas: set[str], asked: list[str], data: st.DataObject
) -> None:
    lost = data.draw(st.sampled_from(sorted(replicas)))
    for session in asked:
        before = preference(session, replicas)
        after = preference(session, replicas - {lost})
        assert after == [name for name in before if name != lost]
        assert (before[0] == after[0]) == (before[0] != lost)


@given(names, st.text(max_size=20), st.randoms())
def test_the_order_is_of_all_and_does_not_hang_on_how_they_are_listed(
    replicas: set[str], session: str, rng: st.DrawFn
) -> None:
    listed = sorted(replicas)
    rng.shuffle(listed)  # type: ignore[attr-defined]
    assert preference(session, listed) == preference(session, sorted(replicas))
    assert set(preference(session, listed)) == replicas


def test_sessions_are_spread_evenly() -> None:
    replicas = [f"http://127.0.0.1:{port}" for port in range(4000, 4004)]
    won = Counter(preference(f"session-{number}", replicas)[0] for number in range(4000))
    assert all(900 < won[name] < 1100 for name in replicas)
