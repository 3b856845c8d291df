"""`POST /v1/sessions/{id}/reward`: whose sessions, which turn, which bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import USER, Gateway, running
from tests.gateway.test_feedback import KEYS, answer, post


@pytest.fixture(scope="module")
def rewarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("reward") / "run", api_keys=KEYS) as gateway:
        yield gateway


def reward(gateway: Gateway, session: str, body: Any, key: str = "ann") -> httpx.Response:
    return post(gateway, f"/v1/sessions/{session}/reward", body, key)


def test_a_reward_for_the_last_turn_and_for_a_named_one(rewarded: Gateway) -> None:
    headers = {"Authorization": "Bearer secret-ann", "X-Session-Id": "runs/one"}
    body = {"model": "policy", "messages": [USER]}
    first, second = (
        rewarded.http.post("/v1/chat/completions", json=body, headers=headers).headers["X-Turn-Id"] for _ in range(2)
    )
    said = reward(rewarded, "runs/one", {"score": 3, "range": [0, 4], "source": "unit tests"})
    expected = {"turn_id": second, "score": 0.5, "recorded_only": False, "repeated": False}
    assert (said.status_code, said.json()) == (200, expected)
    again = reward(rewarded, "runs/one", {"score": 3, "range": [0, 4], "source": "unit tests"})
    assert again.json() == {**expected, "repeated": True}
    assert reward(rewarded, "runs/one", {"score": -1, "id": f"chatcmpl-{first}"}).json()["turn_id"] == first
    found = {one.turn_id: one for one in rewarded.store.turns.judgements() if one.turn_id in {first, second}}
    assert [(found[turn].kind, found[turn].score) for turn in (first, second)] == [
        ("environment", -1.0),
        ("environment", 0.5),
    ]
    assert found[second].details == {"source": "unit tests", "raw": 3.0}


def test_only_the_owner_and_an_admin(rewarded: Gateway) -> None:
    response = answer(rewarded)
    session = response.headers["X-Session-Id"]
    refused = reward(rewarded, session, {"score": 1}, "bob")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "turn_not_found")
    unheard_of = reward(rewarded, "nowhere", {"score": 1})
    assert unheard_of.status_code == 404
    assert unheard_of.json()["error"]["message"] == "This key has no such turn in such a session."
    assert reward(rewarded, session, {"score": 1}, "nobody").status_code == 401
    assert reward(rewarded, session, {"score": 1}, "root").status_code == 200
    assert reward(rewarded, session, {"score": 1}, "ann").json()["repeated"] is True


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "score"),
        ({"score": 1.5}, "score"),
        ({"score": True}, "score"),
        ({"score": "1"}, "score"),
        ({"score": 5, "range": [0, 4]}, "score"),
        ({"score": 0, "range": [1, 1]}, "range"),
        ({"score": 0, "range": [1, 0]}, "range"),
        ({"score": 0, "range": [0]}, "range"),
        ({"score": 0, "range": [0, "1"]}, "range[1]"),
        ({"score": 0, "source": ""}, "source"),
        ({"score": 0, "source": "x" * 65}, "source"),
        ({"score": 0, "reward": 1}, "reward"),
        ({"score": 0, "turn_id": "a", "id": "b"}, "turn_id"),
    ],
)
def test_wrong_bodies(rewarded: Gateway, body: Any, param: str) -> None:
    response = reward(rewarded, "s", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
