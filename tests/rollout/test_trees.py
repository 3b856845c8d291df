"""Random trees of conversations, from several clients at once: every piece of feedback is about its own turn."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw_rl.config import RolloutConfig
from openclaw_rl.serving.gateway.recorder import Arrival
from openclaw_rl.store import Store
from openclaw_rl.store.schema import requests
from tests.builders import make_config
from tests.rollout.world import HABITS, Client, World, marks_in

PROPERTY = settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])

CLIENTS = st.lists(
    st.tuples(st.sampled_from(["k1", "k2"]), st.booleans(), st.sampled_from(HABITS)), min_size=1, max_size=4
)
CHOICE = st.integers(0, 30)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "repeat", "finish", "finish", "finish", "loops"]),
        CHOICE,
        st.sampled_from(["served", "served", "served", "failed", "undelivered"]),
    ),
    max_size=40,
)


@contextmanager
def world(clients: list[tuple[str, bool, str]]) -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(Path(folder), rollout=RolloutConfig())
        store = Store.open(config.store_path)
        people = [
            # The same name under two keys is two sessions; a name is one conversation of one key.
            Client(number=number, key=key, session=f"name{number}" if named else None, habit=habit)
            for number, (key, named, habit) in enumerate(clients)
        ]
        try:
            yield World(store, config, people)
        finally:
            store.close()


def play(somewhere: World, actions: list[tuple[str, int, str]]) -> None:
    for action, choice, outcome in actions:
        client = somewhere.clients[choice % len(somewhere.clients)]
        if action == "ask":
            somewhere.ask(client, choice // 2)
        elif action == "repeat":
            somewhere.repeat(client, choice // 2)
        elif action == "finish":
            somewhere.finish(choice, outcome)
        else:
            somewhere.run_loops(train=choice % 2 == 0)
    somewhere.finish_all()


def rows(store: Store) -> dict[str, dict[str, Any]]:
    with store._database.read() as connection:
        return {row["turn_id"]: dict(row) for row in connection.execute(requests.select()).mappings()}


def check_lineage(somewhere: World) -> None:
    found = rows(somewhere.store)
    owners: dict[str, set[int]] = {}
    for turn_id, said in somewhere.said.items():
        row = found[turn_id]
        assert row["parent_turn_id"] == said.parent
        assert not row["ambiguous"]
        assert row["key_id"] == said.client.key
        assert marks_in(row["new_messages"]) == (said.new_marks if said.parent else [])
        if said.parent is not None:
            assert row["session_id"] == found[said.parent]["session_id"]
        if said.retries is not None:
            assert row["retry_of"] == said.retries
            assert row["session_id"] == found[said.retries]["session_id"]
        else:
            assert row["retry_of"] is None
        owners.setdefault(row["session_id"], set()).add(said.client.number)
    assert all(len(numbers) == 1 for numbers in owners.values()), "a session is one client's"


def check_feedback(somewhere: World) -> None:
    store = somewhere.store
    for turn_id, said in somewhere.said.items():
        exchange = store.turns.exchange(turn_id)
        children = [other for other in somewhere.said.values() if other.parent == turn_id]
        if exchange is None:
            assert said.answer is None
            assert not children
            continue
        if exchange.turn.next_state is None:
            assert not children, "whoever got a reaction has it"
            continue
        # The first child that arrived gave it, whatever became of that child.
        assert exchange.next_turn_id == children[0].turn_id
        assert marks_in(exchange.turn.next_state) == children[0].new_marks


def check_training(somewhere: World) -> None:
    steps = somewhere.store.samples.steps()
    trained = [turn_id for step in steps for turn_id in step.sample_ids]
    assert len(trained) == len(set(trained)), "no response is trained twice"
    retried = {said.retries for said in somewhere.said.values()}
    for turn_id in trained:
        said = somewhere.said[turn_id]
        assert said.status == "served", "a failed attempt is no sample"
        assert turn_id not in retried
        assert any(other.parent == turn_id for other in somewhere.said.values())
    reacted = {said.parent for said in somewhere.said.values()} - {None}
    assert set(trained) == reacted, "whatever was reacted to is trained, once"


@PROPERTY
@given(CLIENTS, ACTIONS)
def test_everything_belongs_to_its_turn(clients: list[tuple[str, bool, str]], actions: Any) -> None:
    with world(clients) as somewhere:
        play(somewhere, actions)
        check_lineage(somewhere)
        check_feedback(somewhere)
        check_training(somewhere)


def test_the_model_reaches_what_it_is_for() -> None:
    """Branches, retries, siblings, tools, failures and late answers all happen in one fixed play."""
    clients = [("k1", False, habit) for habit in HABITS] + [("k2", True, "stamped")]
    with world(clients) as somewhere:
        for number, client in enumerate(somewhere.clients):
            somewhere.ask(client, 0)
            somewhere.finish(0, "failed" if number % 2 else "undelivered")
            somewhere.repeat(client, 0)
            somewhere.finish(0, "served")
            for choice in (3, 0, 1, 4):
                somewhere.ask(client, choice)
                somewhere.finish(choice * 3, "served")
                somewhere.run_loops(train=False)
            somewhere.repeat(client, 5)
            somewhere.finish(0, "served")
        somewhere.finish_all()
        check_lineage(somewhere)
        check_feedback(somewhere)
        check_training(somewhere)
        counters = somewhere.store.status.counts().counters
        assert counters["requests_retried"] == len(clients)
        assert counters["turns_excluded_not_delivered"] >= 2
        assert counters["signals_regenerated"] >= 1
        assert counters["signals_edited"] >= 1


# --- where content cannot tell -----------------------------------------------------------------------------


def twins(folder: Path, order: list[bool], *, apart_by: str = "nothing") -> tuple[World, list[Any]]:
    """Two clients say the same, get the same answers, and go on in this order."""
    config = make_config(folder)
    somewhere = World(Store.open(config.store_path), config, [])
    histories: list[list[Any]] = [[], []]
    seen = []
    for number, second in enumerate(order):
        history = histories[second]
        history.append({"role": "user", "content": f"question {len(history)}"})
        opened = somewhere.recorder._open(
            Arrival(
                turn_id=f"t{number}",
                key_id=f"k{second}" if apart_by == "key" else "k",
                client_session_id=f"twin{second}" if apart_by == "name" else None,
                turn_type=None,
                messages=tuple(history),
                tools=(),
                session_done=False,
                model="policy",
                prompt_cache_key=f"cache{second}" if apart_by == "hint" else None,
                created_at=float(number) + 1e9,
            )
        )
        answer = {"role": "assistant", "content": f"answer {len(history)}"}
        turn = replace(somewhere._turn(opened.request, 1), answer=answer)
        somewhere.store.turns.record_turn(turn, context_hash=opened.hasher.extended(answer))
        history.append(answer)
        seen.append((second, opened.request))
        somewhere.run_loops(train=False)
    return somewhere, seen


ORDERS = st.lists(st.booleans(), min_size=2, max_size=8)


@PROPERTY
@given(ORDERS)
def test_identical_conversations_without_a_name_never_get_each_others_feedback(order: list[bool]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        somewhere, seen = twins(Path(folder), order)
        owner = {request.turn_id: second for second, request in seen}
        depth: dict[bool, int] = {False: 0, True: 0}
        ambiguous = 0
        for second, request in seen:
            level = depth[second]
            other_was_there = level > 0 and depth[not second] >= level
            depth[second] += 1
            turn = somewhere.store.turns.get(request.turn_id)
            assert turn is not None, "it is served all the same"
            if other_was_there:
                assert request.ambiguous
                assert (request.parent_turn_id, request.new_messages) == (None, ())
                assert turn.reason == "ambiguous_parent"
                ambiguous += 1
            elif request.parent_turn_id is not None:
                assert owner[request.parent_turn_id] == second
        assert somewhere.store.status.counts().counters.get("requests_ambiguous", 0) >= ambiguous
        for turn_id, second in owner.items():
            exchange = somewhere.store.turns.exchange(turn_id)
            assert exchange is not None
            assert exchange.next_turn_id is None or owner[exchange.next_turn_id] == second
        somewhere.store.close()


@PROPERTY
@given(ORDERS, st.sampled_from(["name", "hint", "key"]))
def test_a_name_or_a_hint_or_a_key_tells_them_apart(order: list[bool], how: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        somewhere, seen = twins(Path(folder), order, apart_by=how)
        last: dict[bool, str | None] = {False: None, True: None}
        for second, request in seen:
            assert (request.ambiguous, request.parent_turn_id) == (False, last[second])
            last[second] = request.turn_id
        sessions: dict[bool, set[str]] = {False: set(), True: set()}
        for second, request in seen:
            sessions[second].add(request.session_id)
        assert not sessions[False] & sessions[True]
        somewhere.store.close()


@pytest.mark.parametrize("habit", HABITS)
def test_each_habit_is_forgiven(habit: str) -> None:
    with world([("k1", False, habit)]) as somewhere:
        for choice in (0, 3, 6, 1, 9):
            somewhere.ask(somewhere.clients[0], choice)
            somewhere.finish(choice, "served")
        somewhere.finish_all()
        check_lineage(somewhere)
        check_feedback(somewhere)
