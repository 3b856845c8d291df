"""No web page may talk to, and so train, a gateway without keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from openclaw_rl.serving.gateway.local_only import LocalOnly, is_loopback_host, is_loopback_origin
from tests.gateway.conftest import USER, Gateway, running

BODY: Any = {"model": "policy", "messages": [USER]}


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8000", "127.0.0.1", "127.8.9.1:1", "[::1]", "[::1]:8000", "localhost:65535"]
)
def test_loopback_hosts(host: str) -> None:
    assert is_loopback_host(host)
    assert is_loopback_origin(f"http://{host}")
    assert is_loopback_origin(f"https://{host}")


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1@evil.example",
        "localhost, evil.example",
        "localhost:80@evil.example",
        "localhost\n",
        "0.0.0.0",
        "192.168.0.7:8000",
        "[2001:db8::1]:8000",
        "[localhost",
        "::1",
    ],
)
def test_other_hosts(host: str) -> None:
    assert not is_loopback_host(host)
    assert not is_loopback_origin(f"http://{host}")


@pytest.mark.parametrize("origin", ["null", "", "localhost", "file://localhost", "http://localhost/page", "http://"])
def test_other_origins(origin: str) -> None:
    assert not is_loopback_origin(origin)


FOREIGN = [
    ({"Content-Type": "text/plain", "Origin": "https://evil.example"}, "Origin"),
    ({"Origin": "null"}, "Origin"),
    ({"Host": "evil.example"}, "Host"),
    ({"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}, "Origin"),
]


@pytest.mark.parametrize(("headers", "named"), FOREIGN)
def test_a_web_page_is_refused_and_leaves_nothing(gateway: Gateway, headers: dict[str, str], named: str) -> None:
    answer = gateway.post(BODY, headers=headers)
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", named, "not_local")
    assert "serving.api_keys" in error["message"]
    for method, path in (("POST", "/v1/feedback"), ("GET", "/v1/models"), ("POST", "/v1/sessions/s/end")):
        assert gateway.http.request(method, path, headers=headers).status_code == 403
    assert gateway.requests() == []


def test_programs_of_this_machine_are_served(shared: Gateway) -> None:
    shared.client().chat.completions.create(**BODY)
    port = shared.config.serving.port
    for headers in ({"Host": f"localhost:{port}"}, {"Host": "[::1]"}, {"Origin": f"http://localhost:{port}"}):
        assert shared.post(BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("headers", "served"),
    [
        ([(b"host", b"localhost")], True),
        ([(b"host", b"localhost"), (b"host", b"evil.example")], False),
        ([(b"host", b"localhost"), (b"origin", b"http://localhost"), (b"origin", b"http://evil.example")], False),
        ([], False),
    ],
)
def test_every_header_has_to_be_local(headers: list[tuple[bytes, bytes]], served: bool) -> None:
    passed, sent = [], []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope)

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nobody needs the body to refuse it")

    asyncio.run(LocalOnly(app)({"type": "http", "headers": headers}, receive, send))
    assert bool(passed) is served
    assert [message.get("status") for message in sent] == ([] if served else [403, None])


def test_with_keys_the_key_decides(tmp_path: Path) -> None:
    with running(tmp_path / "run", api_keys=[{"name": "ann", "key": "a1"}]) as gateway:
        headers = {"Host": "policy.example", "Origin": "https://page.example"}
        assert gateway.post(BODY, headers=headers).status_code == 401
        assert gateway.post(BODY, headers={**headers, "Authorization": "Bearer a1"}).status_code == 200
