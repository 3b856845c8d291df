"""What goes wrong: clients that leave, engines that fail or are away, a store that cannot be written."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy.exc import OperationalError

from openclaw_rl.config import Config
from openclaw_rl.serving.engines.protocol import (
    EngineError,
    EngineHealth,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
)
from openclaw_rl.serving.gateway.recorder import Arrival, Recorder
from openclaw_rl.serving.gateway.server import serve
from openclaw_rl.store import Store
from openclaw_rl.types import FinishReason, TurnType
from tests.gateway.conftest import USER, Gateway, free_port, running, wait_until
from tests.gateway.fake_engine import FakeEngine, Said

SLOW = Said(text=" ".join(["word"] * 200), pause_s=0.05)
BODY: dict[str, Any] = {"model": "policy", "messages": [USER]}


def statuses(gateway: Gateway) -> list[tuple[str, str | None]]:
    return [(row["status"], row["error"]) for row in gateway.requests()]


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_cancels_its_generation(tmp_path: Path, stream: bool) -> None:
    with running(tmp_path / "run", FakeEngine(say=lambda _: SLOW)) as gateway:
        if stream:
            with gateway.http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                gateway.post(BODY, timeout=0.3)
        left_at = time.monotonic()
        wait_until(lambda: gateway.engine.closed_early == 1)
        assert time.monotonic() - left_at < 1.0
        wait_until(lambda: statuses(gateway) == [("cancelled", "client_gone")])
        assert gateway.store.status.counts().turns_by_state == {}


def test_errors_of_the_engine_before_its_answer(tmp_path: Path) -> None:
    errors = {
        "overloaded": (EngineOverloaded("full"), 429, "1", None),
        "invalid": (InvalidEngineRequest("too long", param="messages", code="too_long"), 400, None, "messages"),
        "broken": (EngineError("broke"), 502, None, None),
    }  # fmt: skip
    engine = FakeEngine(say=lambda request: Said(first_error=errors[request.messages[-1]["content"]][0]))
    with running(tmp_path / "run", engine) as gateway:
        for name, (error, status, retry_after, param) in errors.items():
            for stream in (False, True):
                response = gateway.post({**BODY, "messages": [{"role": "user", "content": name}], "stream": stream})
                assert response.status_code == status
                assert response.headers.get("retry-after") == retry_after
                told = response.json()["error"]
                assert (told["code"], told["param"], told["message"]) == (error.code, param, str(error))
                assert response.headers["x-session-id"]
                assert response.headers["x-turn-id"] == gateway.requests()[-1]["turn_id"]
                assert statuses(gateway)[-1] == ("failed", error.code)


def test_error_in_the_middle_of_a_stream_is_an_event(tmp_path: Path) -> None:
    engine = FakeEngine(say=lambda _: Said(text="so far so", error=EngineError("broke")))
    with running(tmp_path / "run", engine) as gateway:
        stream = gateway.client().chat.completions.create(model="policy", messages=[USER], stream=True)
        seen: list[Any] = []
        with pytest.raises(openai.APIError, match="broke"):
            _note(stream, seen)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in seen) == "so far so"
        raw = gateway.post({**BODY, "stream": True}).text.rstrip().split("\n\n")
        assert json.loads(raw[-1].removeprefix("data: "))["error"]["code"] == "engine_error"
        assert "[DONE]" not in "".join(raw)
        assert statuses(gateway) == [("failed", "engine_error")] * 2
        assert gateway.store.status.counts().turns_by_state == {}


def _note(stream: Iterable[Any], seen: list[Any]) -> None:
    """Read a stream to its end, noting each chunk as it comes, for it may not come to its end."""
    for chunk in stream:
        seen.append(chunk)


def test_aborted_answer_is_an_error_not_an_answer(tmp_path: Path) -> None:
    with running(
        tmp_path / "run", FakeEngine(say=lambda _: Said(text="a", finish_reason=FinishReason.ABORT))
    ) as gateway:
        assert gateway.post(BODY).status_code == 502
        assert statuses(gateway) == [("failed", "engine_error")]


def test_a_fault_of_ours_is_a_500_without_content_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def say(request: Any) -> Said:
        raise RuntimeError(request.messages[0]["content"])

    with running(tmp_path / "run", FakeEngine(say=say)) as gateway:
        response = gateway.post(BODY)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal_error"
        assert statuses(gateway) == [("failed", "internal_error")]
    assert "RuntimeError" in caplog.text
    assert USER["content"] not in caplog.text


def test_answer_that_takes_too_long(tmp_path: Path) -> None:
    with running(tmp_path / "run", FakeEngine(say=lambda _: SLOW), request_timeout_s=0.5) as gateway:
        assert gateway.post(BODY).status_code == 504
        stream = gateway.post({**BODY, "stream": True})
        assert '"code": "timeout"' in stream.text
        assert statuses(gateway) == [("failed", "timeout")] * 2
        assert gateway.engine.closed_early == 2


def test_too_many_at_once_are_told_to_come_back(tmp_path: Path) -> None:
    with running(tmp_path / "run", FakeEngine(say=lambda _: SLOW), max_queue=2) as gateway:

        async def crowd() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
                pending = [
                    asyncio.create_task(client.post("/v1/chat/completions", json=BODY, timeout=20)) for _ in range(5)
                ]
                done, rest = await asyncio.wait(pending, timeout=1.5)
                for task in rest:
                    task.cancel()
                await asyncio.gather(*rest, return_exceptions=True)
                return [task.result() for task in done]

        refused = asyncio.run(crowd())
        assert [response.status_code for response in refused] == [429] * 3
        assert all(response.headers["retry-after"] == "1" for response in refused)
        wait_until(lambda: gateway.http.get("/readyz").json()["active_requests"] == 0)


def test_engine_that_is_away_is_waited_for(tmp_path: Path) -> None:
    engine = FakeEngine(down=True)
    with running(tmp_path / "run", engine) as gateway:
        wait_until(lambda: _answers(gateway))
        assert gateway.http.get("/readyz").status_code == 503
        threading.Timer(1.0, lambda: setattr(engine, "down", False)).start()
        answer = gateway.client().chat.completions.create(model="policy", messages=[USER])
        assert answer.choices[0].message.content
        assert gateway.http.get("/readyz").status_code == 200


def _answers(gateway: Gateway) -> bool:
    try:
        return gateway.http.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_engine_that_stays_away_is_a_503(tmp_path: Path) -> None:
    attempts: list[float] = []

    def say(_request: Any) -> Said:
        attempts.append(time.monotonic())
        return Said(first_error=EngineUnavailable("loading"))

    with running(tmp_path / "run", FakeEngine(say=say), engine_wait_s=3.0) as gateway:
        response = gateway.post(BODY)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"]["code"] == "engine_unavailable"
        assert len(attempts) > 1
        assert statuses(gateway) == [("failed", "engine_unavailable")]


class BrokenTurns:
    """A store's turns of which one method fails, as it does on a full disk."""

    def __init__(self, turns: Any, broken: str) -> None:
        self._turns, self._broken = turns, broken

    def __getattr__(self, name: str) -> Any:
        if name == self._broken:
            raise OperationalError("INSERT", {}, OSError("disk full"))
        return getattr(self._turns, name)


@pytest.mark.parametrize("broken", ["record_request", "record_turn"])
def test_store_that_fails_does_not_break_the_answer(gateway: Gateway, broken: str) -> None:
    gateway.store.turns = BrokenTurns(gateway.store.turns, broken)  # type: ignore[assignment]
    for stream in (False, True):
        response = gateway.post({**BODY, "stream": stream}, headers={"X-Session-Id": "mine"})
        assert response.status_code == 200
        assert response.headers["x-session-id"] == "mine"
        assert "you?" in response.text
    assert gateway.http.get("/readyz").json()["turns_not_recorded"] == 2


@pytest.mark.parametrize("stream", [True, False])
def test_gateway_that_stops_tells_its_clients_and_records_it(
    tmp_path: Path, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    asked = threading.Event()

    def slow(_request: object) -> Any:
        asked.set()
        return SLOW

    answers: list[httpx.Response] = []
    with running(tmp_path / "run", FakeEngine(say=slow)) as gateway:
        body = {**BODY, "stream": stream}
        url = f"{gateway.url}/v1/chat/completions"
        client = threading.Thread(target=lambda: answers.append(httpx.post(url, json=body, timeout=20, verify=False)))
        client.start()
        assert asked.wait(10)
    client.join(20)
    (answer,) = answers
    assert answer.status_code == (200 if stream else 503)
    assert "The gateway is stopping." in answer.text
    assert "retry-after" in answer.headers or stream
    assert not [record for record in caplog.records if "Exception in ASGI application" in record.getMessage()]
    store = Store.open(tmp_path / "run" / "store.sqlite")
    try:
        gateway.store = store
        assert statuses(gateway) == [("failed", "gateway_stopped")]
    finally:
        store.close()


def test_requests_left_open_by_a_killed_gateway_are_failed(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.sqlite")

    async def arrive() -> None:
        recorder = Recorder(store)
        arrival = Arrival(
            turn_id="t1", key_id="k", client_session_id=None, turn_type=TurnType.MAIN, messages=(USER,), tools=(),
            session_done=False, model="policy", created_at=1.0,
        )  # fmt: skip
        assert await recorder.open(arrival) is not None
        await recorder.close()

    asyncio.run(arrive())
    assert store.turns.fail_open(error="gateway_killed") == 1
    assert store.turns.fail_open(error="gateway_killed") == 0
    assert store.status.counts().counters["requests_failed"] == 1
    store.close()


def test_a_gateway_that_no_longer_looks_at_its_engine_ends(tmp_path: Path) -> None:
    """It would repeat what it saw last, and nobody would know: its supervisor starts it again."""

    class Babbling(FakeEngine):
        async def health(self) -> EngineHealth:
            raise ValueError("nobody expects this")

    async def scenario() -> None:
        config = Config.model_validate({"run_dir": tmp_path, "serving": {"port": free_port()}})
        store = Store.open(config.store_path)
        try:
            async with asyncio.timeout(20):
                with pytest.raises(RuntimeError, match="background work has failed") as ended:
                    await serve(config, store, Babbling(), threading.Event())
        finally:
            store.close()
        assert isinstance(ended.value.__cause__, ValueError)

    asyncio.run(scenario())
