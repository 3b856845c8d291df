"""`POST /v1/feedback`: whose turns, which bodies, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.serving.gateway.auth import key_id
from openclaw_rl.types import TurnState
from tests.gateway.conftest import USER, Gateway, running

KEYS = [
    {"name": "ann", "key": "secret-ann"},
    {"name": "bob", "key": "secret-bob"},
    {"name": "root", "key": "secret-root", "admin": True},
]


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("feedback") / "run", api_keys=KEYS) as gateway:
        yield gateway


def post(gateway: Gateway, path: str, body: Any, key: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer secret-{key}"}
    return gateway.http.post(path, json=body, headers=headers)


def answer(gateway: Gateway, key: str = "ann") -> httpx.Response:
    return post(gateway, "/v1/chat/completions", {"model": "policy", "messages": [USER]}, key)


def rate(gateway: Gateway, body: Any, key: str = "ann") -> httpx.Response:
    return post(gateway, "/v1/feedback", body, key)


def test_thumb_by_the_response_id_and_score_by_the_turn_id(rated: Gateway) -> None:
    response = answer(rated)
    turn_id = response.headers["X-Turn-Id"]
    said = rate(rated, {"id": response.json()["id"], "thumb": "down", "comment": "Too long."})
    assert (said.status_code, said.json()) == (
        200,
        {"turn_id": turn_id, "score": -1.0, "recorded_only": False},
    )
    assert rate(rated, {"turn_id": turn_id, "score": 0.25}).json()["score"] == 0.25
    found = [one for one in rated.store.turns.judgements() if one.turn_id == turn_id]
    assert [(one.kind, one.score, one.hint) for one in found] == [("human", -1.0, "Too long."), ("human", 0.25, None)]
    for _ in range(2):
        run_pass(rated.store, rated.config, time.time())
    assert rated.turn(turn_id).state is TurnState.SAMPLED


def test_feedback_on_what_is_never_trained_is_recorded_only(rated: Gateway) -> None:
    body = {"model": "policy", "messages": [USER], "temperature": 0}
    greedy = post(rated, "/v1/chat/completions", body, "ann").headers["X-Turn-Id"]
    sampled = answer(rated).headers["X-Turn-Id"]
    for seen_by_the_rollout_loop in (False, True):
        if seen_by_the_rollout_loop:
            run_pass(rated.store, rated.config, time.time())
            assert rated.turn(greedy).reason == "greedy"
        for turn_id, only in ((greedy, True), (sampled, False)):
            assert rate(rated, {"turn_id": turn_id, "score": 0.5}).json()["recorded_only"] is only
    said = post(rated, f"/v1/sessions/{rated.turn(greedy).request.session_id}/reward", {"score": 1}, "ann").json()
    assert said["recorded_only"] is True


def test_feedback_on_a_turn_without_a_next_state_counts(rated: Gateway) -> None:
    turn_id = answer(rated).headers["X-Turn-Id"]
    rated.store.sessions.end(key_id("ann"), rated.turn(turn_id).request.session_id, "ended_by_client")
    run_pass(rated.store, rated.config, time.time())
    assert rated.turn(turn_id).reason == "no_next_state"
    assert rate(rated, {"turn_id": turn_id, "score": 0.5}).json()["recorded_only"] is False


def test_only_the_owner_and_an_admin(rated: Gateway) -> None:
    turn_id = answer(rated).headers["X-Turn-Id"]
    body = {"turn_id": turn_id, "thumb": "up"}
    refused = rate(rated, body, "bob")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "turn_not_found")
    assert rate(rated, {**body, "turn_id": "nothing"}).status_code == 404
    assert rate(rated, body, "nobody").status_code == 401
    assert not [one for one in rated.store.turns.judgements() if one.turn_id == turn_id]
    assert rate(rated, body, "root").status_code == 200
    assert rate(rated, body, "ann").status_code == 200


def test_gateway_without_keys_takes_feedback_from_its_machine(gateway: Gateway) -> None:
    response = gateway.post({"model": "policy", "messages": [USER]})
    said = gateway.http.post("/v1/feedback", json={"id": response.json()["id"], "thumb": "up"})
    assert said.status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"thumb": "up"}, "turn_id"),
        ({"turn_id": "t"}, "score"),
        ({"turn_id": "t", "score": 1, "thumb": "up"}, "score"),
        ({"turn_id": "t", "score": 1.5}, "score"),
        ({"turn_id": "t", "score": True}, "score"),
        ({"turn_id": "t", "score": "1"}, "score"),
        ({"turn_id": "t", "thumb": "sideways"}, "thumb"),
        ({"turn_id": 7, "thumb": "up"}, "turn_id"),
        ({"turn_id": "t", "id": "chatcmpl-u", "thumb": "up"}, "turn_id"),
        ({"turn_id": "t", "thumb": "up", "comment": 3}, "comment"),
        ({"turn_id": "t", "thumb": "up", "comment": "x" * 4001}, "comment"),
        ({"turn_id": "t", "thumb": "up", "note": "x"}, "note"),
    ],
)
def test_wrong_bodies(rated: Gateway, body: Any, param: str) -> None:
    response = rate(rated, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_bodies_that_are_no_objects(rated: Gateway) -> None:
    headers = {"Authorization": "Bearer secret-ann"}
    for content in (b"", b"[]", b"not json"):
        assert rated.http.post("/v1/feedback", content=content, headers=headers).status_code == 400
    large = b'{"turn_id": "' + b"x" * 70_000 + b'"}'
    assert rated.http.post("/v1/feedback", content=large, headers=headers).status_code == 413
