"""Groups, tasks and steps of samples, from what the requests say."""

from __future__ import annotations

from openclaw_rl.rollout.samples import build_sample
from openclaw_rl.store import Store
from openclaw_rl.store.rows import Fingerprint
from openclaw_rl.types import Method, Origin, Sample, TurnState
from tests.builders import make_judgement, make_request, make_turn, user


def served(store: Store, turn_id: str, body: str | None, *, parent: str | None = None, key: str = "anna") -> None:
    """A request whose messages hash to `body`, and its answer."""
    request = make_request(
        turn_id,
        key_id=key,
        session_id=f"{key}-{turn_id[0]}",
        parent_turn_id=parent,
        new_messages=(user("And?"),) if parent else (),
    )
    store.turns.record_request(request, fingerprint=Fingerprint(body_hash=body))
    store.turns.record_turn(make_turn(request=request), context_hash=f"hash-{turn_id}")


def origin(store: Store, turn_id: str) -> Origin:
    """That of the turn's sample, as the trainer gets it."""
    store.turns.move(turn_id, TurnState.AWAITING_NEXT_STATE)
    store.turns.set_next_state(turn_id, f"{turn_id}-next", [user("No.")])
    turn = store.turns.get(turn_id)
    assert turn is not None
    sample = build_sample(turn, make_judgement(turn_id), Method.COMBINE, now=1000.0)
    assert isinstance(sample, Sample)
    store.samples.add(sample)
    (claimed,) = store.samples.claim(1, 60.0)
    assert claimed.origin is not None
    return claimed.origin


def test_answers_to_the_same_messages_are_a_group_whatever_the_conversation(store: Store) -> None:
    served(store, "a1", "poem")
    served(store, "b1", "poem")
    served(store, "c1", "fuse")
    first, again, other = (origin(store, turn_id) for turn_id in ("a1", "b1", "c1"))
    assert first == again
    assert other.group_id not in {None, first.group_id}
    assert first.task_id == first.group_id
    assert first.key_id == "anna"


def test_keys_share_no_group(store: Store) -> None:
    served(store, "a1", "poem", key="anna")
    served(store, "b1", "poem", key="bert")
    anna, bert = origin(store, "a1"), origin(store, "b1")
    assert (anna.key_id, bert.key_id) == ("anna", "bert")
    assert anna.group_id != bert.group_id


def test_steps_count_the_answers_before_and_keep_the_task_of_the_first(store: Store) -> None:
    served(store, "a1", "poem")
    served(store, "a2", "poem, shorter", parent="a1")
    served(store, "a3", "poem, shorter, plainer", parent="a2")
    served(store, "b1", "poem")
    served(store, "b2", "poem, in verse", parent="b1")
    one, three, two = origin(store, "a1"), origin(store, "a3"), origin(store, "b2")
    assert (one.step, two.step, three.step) == (0, 1, 2)
    assert one.task_id == two.task_id == three.task_id
    assert len({one.group_id, two.group_id, three.group_id}) == 3


def test_without_a_hash_a_sample_is_alone(store: Store) -> None:
    served(store, "a1", None)
    served(store, "a2", "poem", parent="a1")
    found = origin(store, "a2")
    assert found.group_id is not None
    assert (found.task_id, found.step) == (None, 1)
