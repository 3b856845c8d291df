"""A policy per user at the gateway: who is who, whose version answers, and that nothing crosses."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.config import PoliciesConfig
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    EngineOverloaded,
    InvalidEngineRequest,
    PromptRead,
    UnreadableVersion,
)
from openclaw_rl.serving.gateway.auth import LOCAL, Principal
from openclaw_rl.serving.gateway.errors import GatewayError
from openclaw_rl.serving.gateway.owners import MAX_USER, OwnerNames
from openclaw_rl.store import Store
from openclaw_rl.store.schema import versions
from openclaw_rl.types import ExclusionReason, PolicyVersion
from tests.gateway.conftest import USER, Gateway, running, wait_until
from tests.gateway.fake_engine import FakeEngine, Said, echo

PHONE = Principal(key_id="k1", train=True, name="phone")
ADMIN = Principal(key_id="k2", train=True, admin=True, name="admin")
KEYS = [{"name": "phone", "key": "pk"}, {"name": "desk", "key": "dk"}, {"name": "admin", "key": "ak", "admin": True}]


def publish(store: Store, version: int, owner: str) -> None:
    """Put an owner's version into service as the trainer does, without a step behind it."""
    with store._database.write() as connection:
        connection.execute(
            versions.insert().values(
                version=version,
                state="candidate",
                state_since=1.0,
                path=f"/v{version}",
                step=version,
                created_at=1.0,
                owner=owner,
            )
        )
    store.versions.serve(version)


@dataclass
class SmallEngine(FakeEngine):
    """Keeps `places` versions; one that a request uses is never let go of."""

    places: int = 1
    using: dict[str, int] = field(default_factory=dict)
    tries: int = 0

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.using[request.request_id] = request.version
        try:
            async for event in super().chat(request):
                yield event
        finally:
            del self.using[request.request_id]

    async def load_version(self, version: PolicyVersion) -> None:
        self.tries += 1
        if version.version not in self.loaded and len(self.loaded) >= self.places:
            unused = sorted(self.loaded - set(self.using.values()))
            if not unused:
                raise EngineOverloaded("all are in use")
            self.loaded.discard(unused[0])
        await super().load_version(version)


def ask(gateway: Gateway, user: str | None = None, key: str = "", **body: Any) -> httpx.Response:
    named = {} if user is None else {"user": user}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    session = {"X-Session-Id": body.pop("session")} if "session" in body else {}
    return gateway.post({"model": "policy", "messages": [USER], **named, **body}, headers={**headers, **session})


def version_for(gateway: Gateway, user: str | None = None, key: str = "", **body: Any) -> str:
    response = ask(gateway, user, key, **body)
    assert response.status_code == 200, response.text
    return response.headers["x-policy-version"]


def model_names(gateway: Gateway, key: str) -> list[str]:
    listed = gateway.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).json()
    return [model["id"] for model in listed["data"]]


@contextmanager
def per_user(path: Path, engine: FakeEngine | None = None, **serving: Any) -> Iterator[Gateway]:
    with running(path / "run", engine, policies={"per": "user"}, **serving) as gateway:
        yield gateway


# --- who is who --------------------------------------------------------------------------------------------


def test_a_user_is_the_bodys_else_the_headers_else_the_key() -> None:
    names = OwnerNames(PoliciesConfig(per="user"), ["phone", "admin"])
    assert names.owner(PHONE, user="ann", header="bob") == "ann"
    assert names.owner(PHONE, header="bob") == "bob"
    assert names.owner(PHONE, user="", header="") == "phone"
    assert names.owner(PHONE, header=" \tann b\t ") == "ann b"  # blanks around a header's value are none of it
    assert names.owner(PHONE, header=" \t") == "phone"
    assert names.owner(LOCAL) == ""
    assert names.owner(PHONE, header="J\u00f6rg".encode().decode("latin-1")) == "J\u00f6rg"


def test_per_key_and_none() -> None:
    assert OwnerNames(PoliciesConfig(per="key"), ["phone"]).owner(PHONE, user="ann") == "phone"
    assert OwnerNames(PoliciesConfig(), ["phone"]).owner(PHONE, user="ann", header="\xff") == ""


@pytest.mark.parametrize(
    ("values", "field_name", "status"),
    [
        ({"user": "x" * (MAX_USER + 1)}, "user", 400),
        ({"user": "a\nb"}, "user", 400),
        ({"user": "\ud800"}, "user", 400),
        ({"header": "a\x7fb"}, "X-User-Id", 400),
        ({"header": "\xff"}, "X-User-Id", 400),
        ({"user": "admin"}, "user", 403),
    ],
)
def test_a_name_that_cannot_be_is_refused_by_field(values: dict[str, str], field_name: str, status: int) -> None:
    names = OwnerNames(PoliciesConfig(per="user"), ["phone", "admin"])
    with pytest.raises(GatewayError) as caught:
        names.owner(PHONE, **values)
    assert (caught.value.status, caught.value.param) == (status, field_name)
    if status == 403:
        assert names.owner(ADMIN, user="phone") == "phone"


def test_the_log_warns_of_a_key_that_is_called_like_a_user_of_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with per_user(tmp_path, api_keys=KEYS[:1]) as gateway:
        assert ask(gateway, "bob", "pk").status_code == 200
    assert "others spoke" not in caplog.text
    with per_user(tmp_path, api_keys=[*KEYS, {"name": "bob", "key": "bk"}]):
        assert caplog.text.count("the API key bob has the policy of a user bob for whom others spoke") == 1


# --- whose version -----------------------------------------------------------------------------------------


def test_each_is_answered_by_its_own(tmp_path: Path) -> None:
    with per_user(tmp_path) as gateway:
        publish(gateway.store, 1, "ann")
        publish(gateway.store, 2, "bob")
        assert [version_for(gateway, user) for user in ("ann", "bob", "cora", None)] == ["1", "2", "0", "0"]
        turn = gateway.turn(ask(gateway, "ann").json()["id"])
        assert (turn.request.owner, turn.reason) == ("ann", None)
        assert gateway.turn(ask(gateway, "cora").json()["id"]).reason is None  # the base is what it begins with
        assert gateway.turn(ask(gateway).json()["id"]).reason is ExclusionReason.NO_OWNER
        gateway.store.versions.roll_back(0, "ann")
        assert [version_for(gateway, user) for user in ("ann", "bob")] == ["0", "2"]
        assert gateway.http.get("/readyz").json()["version"] == 0
        bad = gateway.post({"model": "policy", "messages": [USER], "user": 7})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "user")


@dataclass
class StandingIn(FakeEngine):
    """Answers as an engine of several replicas may: with the version that it says, not the one it was asked for."""

    says: int | None = None
    pinned: list[bool] = field(default_factory=list)

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.pinned.append(request.pinned)
        yield PromptRead(prompt_ids=(1, 2), version=self.says)
        async for event in super().chat(request):
            if not isinstance(event, PromptRead):
                yield event


def test_an_owners_version_is_asked_for_as_exactly_that(tmp_path: Path) -> None:
    engine = StandingIn(says=1)
    with per_user(tmp_path, engine) as gateway:
        publish(gateway.store, 1, "ann")
        publish(gateway.store, 2, "bob")
        assert version_for(gateway, "ann") == "1"
        refused = ask(gateway, "bob")
        assert refused.status_code >= 500
        assert "x-policy-version" not in refused.headers
        assert engine.pinned == [True, True]


def test_with_one_policy_another_version_may_stand_in(tmp_path: Path) -> None:
    engine = StandingIn(says=0)
    with running(tmp_path / "run", engine) as gateway:
        publish(gateway.store, 1, "")
        wait_until(lambda: gateway.http.get("/readyz").json()["version"] == 1)
        assert version_for(gateway) == "0"
        assert version_for(gateway, model="policy-v1") == "0"
        assert engine.pinned == [False, True]


def test_nobody_gets_anothers_version_by_name(tmp_path: Path) -> None:
    with per_user(tmp_path, api_keys=KEYS) as gateway:
        publish(gateway.store, 1, "phone")
        publish(gateway.store, 2, "phone")
        publish(gateway.store, 3, "desk")
        assert version_for(gateway, key="pk", model="policy-v1") == "1"
        assert version_for(gateway, key="pk") == "2"
        missing = ask(gateway, key="dk", model="policy-v1")
        unheard_of = ask(gateway, key="dk", model="policy-v9")
        assert (missing.status_code, unheard_of.status_code) == (404, 404)
        assert missing.text.replace("policy-v1", "policy-v9") == unheard_of.text  # nothing tells that there is one
        assert ask(gateway, "phone", key="dk").status_code == 403
        assert version_for(gateway, key="ak", model="policy-v1") == "1"
        assert version_for(gateway, "phone", key="ak") == "2"
        shown = {key: model_names(gateway, key) for key in ("pk", "dk")}
        assert shown == {"pk": ["policy", "base", "policy-v2"], "dk": ["policy", "base", "policy-v3"]}


def test_sessions_of_one_name_are_apart(tmp_path: Path) -> None:
    with per_user(tmp_path) as gateway:
        first, second, again = (
            gateway.turn(ask(gateway, user, session="main").json()["id"]).request for user in ("ann", "bob", "ann")
        )
        assert first.session_id == again.session_id != second.session_id
        headers = {"X-User-Id": "bob"}
        assert gateway.http.post("/v1/sessions/main/end", headers=headers).status_code == 200
        assert gateway.http.post("/v1/sessions/main/end", headers={"X-User-Id": "cora"}).status_code == 404
        reward = gateway.http.post("/v1/sessions/main/reward", headers=headers, json={"score": 1.0})
        assert reward.json()["turn_id"] == second.turn_id


def test_a_reward_is_nobodys_where_two_users_have_a_session_of_that_name(tmp_path: Path) -> None:
    with per_user(tmp_path) as gateway:
        turns = {user: gateway.turn(ask(gateway, user, session="main").json()["id"]) for user in ("ann", "bob")}
        url = "/v1/sessions/main/reward"
        refused = gateway.http.post(url, json={"score": 1.0})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "user_not_named")
        assert "X-User-Id" in refused.json()["error"]["message"]
        for nobody in ("", " \t"):
            plain = HTTPConnection("127.0.0.1", gateway.config.serving.port, timeout=20)  # httpx sends no blanks
            plain.request("POST", url, '{"score": 1.0}', {"X-User-Id": nobody})
            answered = plain.getresponse()
            assert (answered.status, json.loads(answered.read())) == (400, refused.json())
            plain.close()
        assert gateway.store.turns.judgements() == []
        nobodys = gateway.http.post(url, json={"score": 1.0}, headers={"X-User-Id": "dan"})
        assert nobodys.json()["error"]["message"] == "This key has no such turn in such a session of that user."
        body = {"score": 1.0, "turn_id": turns["ann"].turn_id}
        assert gateway.http.post(url, json=body).json()["turn_id"] == turns["ann"].turn_id
        said = gateway.http.post(url, json={"score": 1.0}, headers={"X-User-Id": "ann"}).json()
        assert said["turn_id"] == turns["ann"].turn_id
        alone = gateway.turn(ask(gateway, "cora", session="hers").json()["id"])
        said = gateway.http.post("/v1/sessions/hers/reward", json={"score": 1.0}).json()
        assert said["turn_id"] == alone.turn_id
        ended = gateway.http.post("/v1/sessions/main/end")
        assert (ended.status_code, "X-User-Id" in ended.json()["error"]["message"]) == (404, True)


def test_the_same_history_of_two_users_has_two_parents(tmp_path: Path) -> None:
    with per_user(tmp_path) as gateway:
        turns = {}
        for user in ("ann", "bob"):
            first = ask(gateway, user).json()
            history = [USER, first["choices"][0]["message"], {"role": "user", "content": "no"}]
            second = gateway.turn(ask(gateway, user, messages=history).json()["id"]).request
            assert second.parent_turn_id == first["id"].removeprefix("chatcmpl-")
            turns[user] = second
        assert turns["ann"].session_id != turns["bob"].session_id


# --- more policies than places -----------------------------------------------------------------------------


def test_more_owners_than_places_all_get_their_own(tmp_path: Path) -> None:
    engine = SmallEngine(places=2)
    owners = [f"u{number}" for number in range(1, 7)]
    with per_user(tmp_path, engine) as gateway:
        for number, owner in enumerate(owners, start=1):
            publish(gateway.store, number, owner)
        found: dict[str, list[str]] = {owner: [] for owner in owners}

        def talk(owner: str) -> None:
            for _ in range(5):
                found[owner].append(version_for(gateway, owner))

        threads = [threading.Thread(target=talk, args=(owner,)) for owner in owners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == {owner: [str(number)] * 5 for number, owner in enumerate(owners, start=1)}
        assert len(engine.loaded) <= 2


def test_a_request_waits_for_a_place_and_is_then_told_to_come_again(tmp_path: Path) -> None:
    def say(request: ChatRequest) -> Said:
        return Said(text="a b c d e f g h", pause_s=0.15) if request.version == 1 else echo(request)

    engine = SmallEngine(say=say, places=1)
    with per_user(tmp_path, engine, engine_wait_s=0.4) as gateway:
        publish(gateway.store, 1, "ann")
        publish(gateway.store, 2, "bob")
        long = threading.Thread(target=version_for, args=(gateway, "ann"))
        long.start()
        wait_until(lambda: gateway.http.get("/readyz").json()["active_requests"] == 1)
        wait_until(lambda: bool(gateway.engine.asked))
        began = time.monotonic()
        refused = ask(gateway, "bob")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert time.monotonic() - began < 5
        assert gateway.requests()[-1]["status"] == "failed"
        assert engine.tries <= 6, "pauses grow: 0.05 + 0.1 + 0.2 s, and the deadline"
        long.join(20)
        assert version_for(gateway, "bob") == "2"


@dataclass
class Gated(SmallEngine):
    """Reads the first version's files until it is let go on, and is not through with the first request for it before
    it has the second: for `PATIENCE_S` at most, for one that waits behind Bob never comes."""

    PATIENCE_S = 5.0
    go_on: threading.Event = field(default_factory=threading.Event)
    second: asyncio.Event = field(default_factory=asyncio.Event)

    async def load_version(self, version: PolicyVersion) -> None:
        if version.version == 1:
            await asyncio.to_thread(self.go_on.wait, 20)
        await super().load_version(version)

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        async for event in super().chat(request):
            yield event
            if len(self.asked) == 1:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.second.wait(), self.PATIENCE_S)
            self.second.set()


def test_who_waits_behind_others_goes_on_once_their_version_is_there(tmp_path: Path) -> None:
    """Ann asks twice while hers is being loaded; Bob, between, waits for a place until she is through."""
    engine = Gated(places=1)
    with per_user(tmp_path, engine) as gateway:
        publish(gateway.store, 1, "ann")
        publish(gateway.store, 2, "bob")
        found: list[str] = []
        threads = []
        for owner in ("ann", "bob", "ann"):
            threads.append(threading.Thread(target=lambda owner=owner: found.append(version_for(gateway, owner))))
            threads[-1].start()
            wait_until(lambda: gateway.http.get("/readyz").json()["active_requests"] == len(threads))
            time.sleep(0.2)  # it comes before the next one to where they wait; were it late, the test would see less
        engine.go_on.set()
        for thread in threads:
            thread.join(20)
    assert [request.version for request in engine.asked] == [1, 1, 2]
    assert sorted(found) == ["1", "1", "2"]


@dataclass
class SlowToBegin(FakeEngine):
    """As an upstream of somebody else's is: it says nothing before the first token."""

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        if request.version == 1:
            await asyncio.sleep(3.0)
        async for event in super().chat(request):
            yield event


def test_nobody_waits_for_the_first_token_of_another_whose_version_was_just_loaded(tmp_path: Path) -> None:
    with per_user(tmp_path, SlowToBegin()) as gateway:
        publish(gateway.store, 1, "ann")
        publish(gateway.store, 2, "bob")
        long = threading.Thread(target=version_for, args=(gateway, "ann"))
        long.start()
        wait_until(lambda: gateway.engine.loads == [1])
        assert version_for(gateway, "bob") == "2"
        assert not gateway.engine.asked[:-1], "ann's still has to begin"
        long.join(20)
        assert version_for(gateway, "ann") == "1"


def test_a_version_that_the_engine_let_go_of_is_loaded_again(tmp_path: Path) -> None:
    with per_user(tmp_path) as gateway:
        publish(gateway.store, 1, "ann")
        assert version_for(gateway, "ann") == "1"
        gateway.engine.loaded.clear()
        assert version_for(gateway, "ann") == "1"
        gateway.engine.restart()
        assert version_for(gateway, "ann") == "1"
        assert gateway.engine.loads == [1, 1, 1]


@dataclass
class Picky(FakeEngine):
    """Refuses some versions for good, and cannot read others."""

    damaged: set[int] = field(default_factory=set)
    unreadable: set[int] = field(default_factory=set)
    away: bool = False
    tried: list[int] = field(default_factory=list)

    async def load_version(self, version: PolicyVersion) -> None:
        self.tried.append(version.version)
        if self.away:
            raise EngineOverloaded("no room")
        if version.version in self.damaged:
            raise InvalidEngineRequest("its files are damaged", param="path")
        if version.version in self.unreadable:
            raise UnreadableVersion("its files cannot be read")
        await super().load_version(version)


def test_nobody_is_turned_away_for_a_version_that_cannot_be_read_nor_given_one_that_was_gone_back_from(
    tmp_path: Path,
) -> None:
    with per_user(tmp_path, Picky(unreadable={4})) as gateway:
        for version in (1, 3):
            publish(gateway.store, version, "ann")
        gateway.store.versions.roll_back(1)
        publish(gateway.store, 4, "ann")
        assert ask(gateway, "ann").headers["x-policy-version"] == "1"


def test_where_an_owners_version_is_damaged_the_one_before_stands_in(tmp_path: Path) -> None:
    engine = Picky(damaged={3, 4})
    with per_user(tmp_path, engine) as gateway:
        for version in (1, 3, 4):
            publish(gateway.store, version, "ann")
        publish(gateway.store, 2, "bob")
        response = ask(gateway, "ann")
        assert response.headers["x-policy-version"] == "1"
        turn = gateway.turn(response.json()["id"])
        assert (turn.reason, set(turn.tokens.versions)) == (ExclusionReason.NOT_FROM_POLICY, {1})
        assert version_for(gateway, "ann") == "1"
        assert engine.tried == [4, 3, 1], "what was refused is not read again for every request"
        assert ask(gateway, "ann", model="policy-v4").status_code == 503
        assert version_for(gateway, "bob") == "2"


def test_without_an_earlier_version_the_base_stands_in(tmp_path: Path) -> None:
    engine = Picky(damaged={1})
    with per_user(tmp_path, engine) as gateway:
        publish(gateway.store, 1, "ann")
        response = ask(gateway, "ann")
        assert response.headers["x-policy-version"] == "0"
        assert gateway.turn(response.json()["id"]).reason is ExclusionReason.NOT_FROM_POLICY


def test_nothing_stands_in_for_a_version_that_cannot_be_loaded_just_now(tmp_path: Path) -> None:
    engine = Picky(away=True)
    with per_user(tmp_path, engine, engine_wait_s=0.2) as gateway:
        publish(gateway.store, 1, "ann")
        publish(gateway.store, 2, "ann")
        refused = ask(gateway, "ann")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert set(engine.tried) == {2}
