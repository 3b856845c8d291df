"""Conversations as clients hold them: their turns form chains, by content and by header, within one key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from openclaw_rl.serving.engines.protocol import ChatRequest
from openclaw_rl.types import Turn
from tests.gateway.conftest import USER, Gateway, running
from tests.gateway.fake_engine import FakeEngine, Said, call

TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
QUESTION = {"role": "user", "content": "What is the weather in Bern?"}
ARGUMENTS = '{"place": "Bern", "days": 2.0}'

Headers = dict[str, str]


def assistant(request: ChatRequest) -> Said:
    """Calls its tool for a question about the weather, then says what the tool found; else echoes."""
    last = request.messages[-1]
    if last["role"] == "tool":
        return Said(text=f"Found: {last['content']}")
    if request.tools and "weather" in last["content"]:
        return Said(tool_calls=tuple(call(0, "weather", ARGUMENTS, "call7f")))
    return Said(text=f"You said: {last['content']}")


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    keys = [{"name": name, "key": f"secret-{name}", "train": name != "quiet"} for name in ("ann", "bob", "quiet")]
    keys += [{"name": f"test{number}", "key": f"secret-test{number}"} for number in range(20)]
    with running(tmp_path_factory.mktemp("s") / "run", FakeEngine(say=assistant), api_keys=keys) as gateway:
        yield gateway


KEYS = iter(f"secret-test{number}" for number in range(20))


@pytest.fixture
def client(talking: Gateway) -> openai.OpenAI:
    """A client with a key of its own, so that no other test's conversation can be its parent."""
    return talking.client(api_key=next(KEYS))


class Talk:
    """A client that keeps its conversation and sends all of it each time."""

    def __init__(self, gateway: Gateway, client: openai.OpenAI, headers: Headers | None = None) -> None:
        self.gateway, self.client, self.headers = gateway, client, headers or {}
        self.messages: list[Any] = []

    def say(self, *messages: Any, **options: Any) -> Turn:
        self.messages += messages
        answer = self.client.chat.completions.create(
            model="policy", messages=self.messages, extra_headers=self.headers, **options
        )
        self.messages.append(answer.choices[0].message.to_dict())
        return self.gateway.turn(answer.id)


@pytest.mark.parametrize("headers", [{}, {"X-Session-Id": "my-session"}])
def test_many_turns_are_a_chain(talking: Gateway, client: openai.OpenAI, headers: Headers) -> None:
    talk = Talk(talking, client, headers)
    turns = [talk.say({"role": "user", "content": f"question {number}"}) for number in range(4)]
    assert [turn.request.parent_turn_id for turn in turns] == [None, *(turn.turn_id for turn in turns[:-1])]
    assert len({turn.request.session_id for turn in turns}) == 1
    assert turns[0].request.new_messages == ()
    assert turns[3].request.new_messages == ({"role": "user", "content": "question 3"},)
    assert turns[0].request.session_id != "my-session"  # ours cannot be guessed


@pytest.mark.parametrize("headers", [{}, {"X-Session-Id": "with-tools"}])
@pytest.mark.parametrize("stream", [False, True])
def test_conversation_with_a_tool_is_a_chain(
    talking: Gateway, client: openai.OpenAI, headers: Headers, stream: bool
) -> None:
    def ask(messages: list[Any]) -> tuple[dict[str, Any], Turn]:
        if stream:
            with client.chat.completions.stream(
                model="policy", messages=messages, tools=TOOLS, extra_headers=headers
            ) as events:
                answer: Any = events.get_final_completion()
        else:
            answer = client.chat.completions.create(
                model="policy", messages=messages, tools=TOOLS, extra_headers=headers
            )
        return answer.choices[0].message.to_dict(exclude_unset=False), talking.turn(answer.id)

    messages: list[Any] = [QUESTION]
    message, called = ask(messages)
    calls = message["tool_calls"]
    assert called.answer["tool_calls"][0]["function"] == {"name": "weather", "arguments": ARGUMENTS}
    sent = [{key: item[key] for key in ("id", "type", "function")} for item in calls]
    sent[0]["function"] = {key: sent[0]["function"][key] for key in ("name", "arguments")}
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "sunny"}
    messages += [{"role": "assistant", "content": None, "tool_calls": sent}, result]
    message, found = ask(messages)
    assert message["content"] == "Found: sunny"
    thanks = {"role": "user", "content": "Thank you!"}
    messages += [{"role": "assistant", "content": message["content"]}, thanks]
    _, thanked = ask(messages)

    assert called.request.parent_turn_id is None
    assert (found.request.parent_turn_id, found.request.new_messages) == (called.turn_id, (result,))
    assert (thanked.request.parent_turn_id, thanked.request.new_messages) == (found.turn_id, (thanks,))
    assert len({turn.request.session_id for turn in (called, found, thanked)}) == 1
    assert found.request.tools == tuple(TOOLS)


def test_client_that_rewrites_its_history_still_finds_the_parent(talking: Gateway, client: openai.OpenAI) -> None:
    talk = Talk(talking, client)
    called = talk.say(QUESTION, tools=TOOLS)
    rewritten = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_7f",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"days":2,\n "place":"Bern"}'},
            }
        ],
    }
    result = {"role": "tool", "tool_call_id": "call_7f", "content": "rain"}
    talk.messages = [{"role": "user", "content": [{"type": "text", "text": f"{QUESTION['content']}\n"}]}, rewritten]
    found = talk.say(result)
    assert found.request.parent_turn_id == called.turn_id
    talk.messages[-1] = {"role": "assistant", "content": [{"type": "text", "text": "Found: rain  "}]}
    assert talk.say(USER).request.parent_turn_id == found.turn_id


def test_regenerated_answer_is_a_sibling(talking: Gateway, client: openai.OpenAI) -> None:
    talk = Talk(talking, client)
    first = talk.say(USER)
    second = talk.say({"role": "user", "content": "more"})
    del talk.messages[-2:]
    again = talk.say({"role": "user", "content": "more"})
    assert again.request.parent_turn_id == second.request.parent_turn_id == first.turn_id
    assert again.turn_id != second.turn_id


def test_same_beginning_in_two_conversations_is_ambiguous(talking: Gateway, client: openai.OpenAI) -> None:
    one, other = Talk(talking, client), Talk(talking, client)
    sessions = {talk.say(USER).request.session_id for talk in (one, other)}
    assert len(sessions) == 2
    unclear = one.say({"role": "user", "content": "go on"}).request
    assert (unclear.ambiguous, unclear.parent_turn_id, unclear.new_messages) == (True, None, ())


def test_header_settles_what_content_cannot(talking: Gateway, client: openai.OpenAI) -> None:
    one, other = Talk(talking, client, {"X-Session-Id": "one"}), Talk(talking, client, {"X-Session-Id": "other"})
    first, _ = one.say(USER), other.say(USER)
    second = one.say({"role": "user", "content": "go on"})
    assert (second.request.ambiguous, second.request.parent_turn_id) == (False, first.turn_id)
    assert second.request.session_id == first.request.session_id


def test_our_own_session_id_comes_back(talking: Gateway, client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="policy", messages=[USER])
    ours = raw.headers["X-Session-Id"]
    again = client.chat.completions.with_raw_response.create(
        model="policy",
        messages=[{"role": "user", "content": "unrelated"}],
        extra_headers={"X-Session-Id": ours},
    )
    assert again.headers["X-Session-Id"] == ours
    assert talking.turn(again.headers["X-Turn-Id"]).request.session_id == ours
    # The id means nothing under another key.
    stranger = talking.client(api_key=next(KEYS)).chat.completions.with_raw_response.create(
        model="policy",
        messages=[USER],
        extra_headers={"X-Session-Id": ours},
    )
    assert talking.turn(stranger.headers["X-Turn-Id"]).request.session_id != ours


def test_same_id_under_two_keys_is_two_sessions(talking: Gateway) -> None:
    turns = []
    for key in ("secret-ann", "secret-bob"):
        talk = Talk(talking, talking.client(api_key=key), {"X-Session-Id": "shared-name"})
        turns.append(talk.say(USER))
        turns.append(talk.say({"role": "user", "content": "more"}))
    assert len({turn.request.session_id for turn in turns}) == 2
    assert len({turn.request.key_id for turn in turns}) == 2
    assert turns[3].request.parent_turn_id == turns[2].turn_id


def test_content_of_another_key_is_no_parent(talking: Gateway) -> None:
    first, second = talking.client(api_key=next(KEYS)), talking.client(api_key=next(KEYS))
    talk = Talk(talking, first)
    talk.say(USER)
    talk.client = second
    assert talk.say({"role": "user", "content": "more"}).request.parent_turn_id is None


def test_body_fields_mean_what_headers_mean(talking: Gateway, client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="policy",
        messages=[USER],
        extra_body={"session_id": "from-body", "turn_type": "side", "session_done": True},
    )
    request = talking.turn(raw.headers["X-Turn-Id"]).request
    assert raw.headers["X-Session-Id"] == "from-body"
    assert (request.turn_type, request.session_done) == ("side", True)
    again = client.chat.completions.with_raw_response.create(
        model="policy",
        messages=[USER],
        extra_headers={"X-Session-Id": "from-body", "X-Turn-Type": "side", "X-Session-Done": "true"},
    )
    assert talking.turn(again.headers["X-Turn-Id"]).request.session_id == request.session_id


@pytest.mark.parametrize(
    ("headers", "fields", "param"),
    [
        ({"X-Turn-Type": "other"}, {}, "X-Turn-Type"),
        ({"X-Session-Done": "maybe"}, {}, "X-Session-Done"),
        ({"X-No-Train": "2"}, {}, "X-No-Train"),
        ({"X-Session-Id": "two words"}, {}, "X-Session-Id"),
        ({"X-Session-Id": ""}, {}, "X-Session-Id"),
        ({"X-Session-Id": "a"}, {"session_id": "b"}, "session_id"),
        ({"X-Turn-Type": "main"}, {"turn_type": "side"}, "turn_type"),
        ({"X-Session-Done": "0"}, {"session_done": True}, "session_done"),
    ],
)
def test_wrong_or_contradicting_headers(talking: Gateway, headers: Headers, fields: Any, param: str) -> None:
    headers = {"Authorization": "Bearer secret-ann", **headers}
    response = talking.post({"model": "policy", "messages": [USER], **fields}, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def ended(gateway: Gateway, session_id: str) -> str | None:
    from openclaw_rl.store.schema import sessions

    with gateway.store._database.read() as connection:
        row = connection.execute(sessions.select().where(sessions.c.session_id == session_id)).mappings().one()
        reason: str | None = row["end_reason"]
        return reason


def test_session_ends_when_its_client_says_so(talking: Gateway, client: openai.OpenAI) -> None:
    talk = Talk(talking, client, {"X-Session-Id": "short/one"})
    session_id = talk.say(USER).request.session_id
    assert ended(talking, session_id) is None

    def end(name: str, key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return talking.http.post(f"/v1/sessions/{name}/end", headers=headers).status_code

    assert end("short/one", "secret-ann") == 404
    assert end("short/one", client.api_key) == 200
    assert ended(talking, session_id) == "ended_by_client"
    assert end("short/one", client.api_key) == 200
    talk.say({"role": "user", "content": "still there?"}, extra_body={"session_done": True})
    assert ended(talking, session_id) == "session_done"


def test_key_that_does_not_train_leaves_no_trace(talking: Gateway) -> None:
    before = len(talking.requests())
    raw = talking.client(api_key="secret-quiet").chat.completions.with_raw_response.create(
        model="policy",
        messages=[USER],
    )
    assert json.loads(raw.content)["choices"][0]["message"]["content"].startswith("You said")
    assert raw.headers["X-Session-Id"]
    assert len(talking.requests()) == before


@pytest.mark.parametrize("key", ["", "wrong", "secret-anna", "secret-an", "sécret"])
def test_wrong_keys(talking: Gateway, key: str) -> None:
    headers = [] if not key else [(b"Authorization", f"Bearer {key}".encode())]
    for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("POST", "/v1/sessions/x/end")):
        response = talking.http.request(method, path, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    with pytest.raises(openai.AuthenticationError):
        talking.client(api_key="wrong").models.list()


def test_scheme_must_be_bearer(talking: Gateway) -> None:
    assert talking.http.get("/v1/models", headers={"Authorization": "Basic secret-ann"}).status_code == 401
    assert talking.http.get("/v1/models", headers={"Authorization": "bearer secret-ann"}).status_code == 200


def test_sessions_outlive_the_gateway(tmp_path: Path) -> None:
    with running(tmp_path / "run") as gateway:
        talk = Talk(gateway, gateway.client())
        first = talk.say(USER)
    with running(tmp_path / "run") as gateway:
        talk.gateway, talk.client = gateway, gateway.client()
        assert talk.say({"role": "user", "content": "more"}).request.parent_turn_id == first.turn_id
