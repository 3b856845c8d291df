"""A record that is locked, full or not writable: the client is served, or refused, and nothing is lost in silence."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.serving.gateway.guard import GRACE_S, StoreDown, StoreGuard
from openclaw_rl.store import Store
from openclaw_rl.store.outage import Outage
from tests.builders import Conversation, make_request
from tests.gateway.conftest import USER, Gateway, running, wait_until
from tests.gateway.fake_engine import FakeEngine, Said
from tests.outages import KINDS, Lock, Trouble, locked

PATIENCE_S = 0.3
LOSSES = ("turns_not_recorded_", "requests_refused_")
LONG = "long-" * 20_000  # needs pages of its own: on a full disk a small write may still find room
BODY: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": f"{LONG} you?"}]}
WORDS = Said(text=f"one two three four five six seven {LONG} eight", pause_s=0.05)


def record(gateway: Gateway) -> dict[str, Any]:
    said: dict[str, Any] = gateway.http.get("/readyz").json()["record"]
    return said


def counters(gateway: Gateway) -> dict[str, int]:
    return dict(gateway.store.status.counts().counters)


def lost(gateway: Gateway) -> dict[str, int]:
    """What was lost, by the record's own counters and by what the gateway has not written there yet."""
    found = Counter(record(gateway)["unsaved"])
    found.update({name: number for name, number in counters(gateway).items() if name.startswith(LOSSES)})
    return dict(found)


def rows(gateway: Gateway) -> list[tuple[str, str | None]]:
    return [(row["status"], row["error"]) for row in gateway.requests()]


def wait_until_back(gateway: Gateway) -> None:
    wait_until(lambda: record(gateway)["problem"] is None and not record(gateway)["unsaved"])


@contextmanager
def outage(gateway: Gateway, kind: str) -> Iterator[None]:
    if kind == "locked":
        with locked(gateway.config.store_path):
            yield
        return
    trouble = Trouble(gateway.store)
    trouble.begin(kind)
    yield
    trouble.mend()


each_outage = pytest.mark.parametrize("kind", ["locked", *KINDS])


@each_outage
def test_users_are_served_and_losses_are_counted_and_written_down_later(tmp_path: Path, kind: str) -> None:
    with running(tmp_path / "run", patience_s=PATIENCE_S) as gateway:
        assert gateway.post(BODY).status_code == 200
        with outage(gateway, kind):
            begun = time.monotonic()
            assert "you?" in gateway.post(BODY).text
            assert time.monotonic() - begun < PATIENCE_S + GRACE_S + 1.0, "the first one waits, with an end"
            begun = time.monotonic()
            stream = gateway.post({**BODY, "stream": True})
            assert stream.text.rstrip().endswith("data: [DONE]")
            assert stream.headers["x-session-id"]
            assert time.monotonic() - begun < PATIENCE_S, "those after it do not wait at all"
            told = record(gateway)
            if kind != "disk_full":  # where the small write that asks whether it is back may succeed
                assert told["problem"] == kind
                assert time.time() - 30 < told["since"] <= time.time()
                assert told["unsaved"] == {f"turns_not_recorded_{kind}": 2}
            assert lost(gateway) == {f"turns_not_recorded_{kind}": 2}
            assert gateway.http.get("/readyz").json()["turns_not_recorded"] == 2
            assert gateway.http.get("/readyz").status_code == 200, "it is ready: users are served"
        wait_until_back(gateway)
        assert counters(gateway)[f"turns_not_recorded_{kind}"] == 2
        assert counters(gateway)["store_outages"] >= 1
        assert gateway.http.get("/readyz").json()["turns_not_recorded"] == 2, "since the start"
        assert rows(gateway) == [("served", None)], "no half row"
        assert gateway.post(BODY).status_code == 200
        assert rows(gateway) == [("served", None)] * 2


@each_outage
def test_refuse_is_a_503_before_the_engine_is_asked(tmp_path: Path, kind: str) -> None:
    rollout = {"on_store_failure": "refuse"}
    with running(tmp_path / "run", patience_s=PATIENCE_S, rollout=rollout) as gateway:
        with outage(gateway, kind):
            for stream in (False, True):
                refused = gateway.post({**BODY, "stream": stream})
                assert refused.status_code == 503
                assert refused.headers["retry-after"] == "1"
                assert refused.json()["error"]["code"] == "record_unavailable"
            assert gateway.engine.asked == []
            unrecorded = gateway.post(BODY, headers={"X-No-Train": "1"})
            assert unrecorded.status_code == 200, "what is not to be recorded needs no record"
        wait_until_back(gateway)
        assert counters(gateway)[f"requests_refused_{kind}"] == 2
        assert f"turns_not_recorded_{kind}" not in counters(gateway)
        assert gateway.post(BODY).status_code == 200
        assert rows(gateway) == [("served", None)]


@each_outage
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["serve", "refuse"])
def test_an_answer_that_has_begun_ends_well_and_leaves_no_half_row(
    tmp_path: Path, kind: str, stream: bool, mode: str
) -> None:
    """The request is in the record, its answer cannot be: the row is closed as failed once the record is back."""
    engine = FakeEngine(say=lambda _: WORDS)
    with running(tmp_path / "run", engine, patience_s=PATIENCE_S, rollout={"on_store_failure": mode}) as gateway:
        answers: list[httpx.Response] = []
        client = threading.Thread(target=lambda: answers.append(gateway.post({**BODY, "stream": stream})))
        client.start()
        wait_until(lambda: rows(gateway) == [("open", None)])
        with outage(gateway, kind):
            client.join(10)
            assert answers[0].status_code == 200
            assert "eight" in answers[0].text
            assert not stream or answers[0].text.rstrip().endswith("data: [DONE]")
            assert lost(gateway) == {f"turns_not_recorded_{kind}": 1}
        wait_until_back(gateway)
        assert rows(gateway) == [("failed", "not_recorded")]
        assert gateway.store.status.counts().turns_by_state == {}
        assert counters(gateway)["requests_failed"] == 1


def test_a_client_that_leaves_during_an_outage_leaves_no_open_row(tmp_path: Path) -> None:
    engine = FakeEngine(say=lambda _: Said(text=" ".join(["word"] * 2000), pause_s=0.05))
    with running(tmp_path / "run", engine, patience_s=PATIENCE_S) as gateway:
        with locked(gateway.config.store_path) as lock:
            lock.release()
            with gateway.http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as response:
                next(response.iter_lines())
                lock.take()
            wait_until(lambda: record(gateway)["problem"] == "locked")
        wait_until_back(gateway)
        wait_until(lambda: rows(gateway) == [("cancelled", "client_gone")])


def test_many_clients_at_once_wait_once(tmp_path: Path) -> None:
    with running(tmp_path / "run", patience_s=PATIENCE_S) as gateway, locked(gateway.config.store_path):

        async def crowd() -> list[int]:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
                asked = [client.post("/v1/chat/completions", json=BODY) for _ in range(12)]
                return [answer.status_code for answer in await asyncio.gather(*asked)]

        begun = time.monotonic()
        assert asyncio.run(crowd()) == [200] * 12
        assert time.monotonic() - begun < 12 * PATIENCE_S, "not one after the other"
        assert record(gateway)["unsaved"] == {"turns_not_recorded_locked": 12}


def test_feedback_and_ends_of_sessions_are_refused_during_an_outage(tmp_path: Path) -> None:
    with running(tmp_path / "run", patience_s=PATIENCE_S) as gateway:
        answer = gateway.post(BODY, headers={"X-Session-Id": "mine"}).json()
        said = {"id": answer["id"], "score": 1}
        with locked(gateway.config.store_path):
            for refused in (
                gateway.http.post("/v1/feedback", json=said),
                gateway.http.post("/v1/sessions/mine/end"),
            ):
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "record_unavailable"
                assert refused.headers["retry-after"] == "1"
        wait_until_back(gateway)
        assert gateway.http.post("/v1/feedback", json=said).status_code == 200
        assert gateway.http.post("/v1/sessions/mine/end").status_code == 200


def test_a_gateway_that_starts_during_an_outage_serves(tmp_path: Path) -> None:
    """What a killed gateway left open fails once the record is back, before anything new is recorded."""
    run_dir = tmp_path / "run"
    path = run_dir / "store.sqlite"
    store = Store.open(path)
    store.turns.record_request(make_request("left", session_id="s"))
    store.close()
    with locked(path) as lock, running(run_dir, patience_s=PATIENCE_S) as gateway:
        assert gateway.post(BODY).status_code == 200
        assert rows(gateway) == [("open", None)]
        lock.release()
        wait_until_back(gateway)
        assert rows(gateway) == [("failed", "gateway_killed")]
        assert gateway.post(BODY).status_code == 200
        assert sorted(rows(gateway)) == [("failed", "gateway_killed"), ("served", None)]


def test_a_gateway_that_stops_during_an_outage_says_what_was_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO),
        running(tmp_path / "run", patience_s=PATIENCE_S) as gateway,
        locked(gateway.config.store_path),
    ):
        assert gateway.post(BODY).status_code == 200
    assert "not recorded (locked)" in caplog.text
    assert USER["content"] not in caplog.text


# --- the guard alone -----------------------------------------------------------------------------------------


@contextmanager
def guarded(tmp_path: Path, job: Callable[[StoreGuard, Store], Any]) -> Iterator[Any]:
    store = Store.open(tmp_path / "store.sqlite", patience_s=0.0)
    guard = StoreGuard(store, lambda: None)

    async def go() -> Any:
        try:
            return await job(guard, store)
        finally:
            await guard.close()

    try:
        yield asyncio.run(go())
    finally:
        store.close()


def test_a_call_that_hangs_is_given_up_and_its_late_end_is_heard_of(tmp_path: Path) -> None:
    let_go = threading.Event()
    ends: list[Exception | None] = []

    async def job(guard: StoreGuard, store: Store) -> tuple[float, StoreDown, Outage | None]:
        begun = time.monotonic()
        with pytest.raises(StoreDown) as hung:
            await guard.run(lambda: let_go.wait(20), ends.append)
        seconds = time.monotonic() - begun
        with pytest.raises(StoreDown):  # at once
            await guard.run(lambda: None)
        problem = guard.problem
        let_go.set()
        await guard.probe()
        assert guard.problem is None
        assert store.status.counts().counters["store_outages"] == 1
        return seconds, hung.value, problem

    with guarded(tmp_path, job) as (seconds, hung, problem):
        assert GRACE_S <= seconds < GRACE_S + 2.0
        assert hung.undecided
        assert problem is Outage.TOO_SLOW
        assert ends == [None]


def test_a_call_that_never_began_is_not_made_later(tmp_path: Path) -> None:
    let_go = threading.Event()
    made: list[str] = []

    async def job(guard: StoreGuard, _store: Store) -> list[StoreDown]:
        calls = (guard.run(lambda: let_go.wait(20)), guard.run(lambda: made.append("second")))
        ended = await asyncio.gather(*calls, return_exceptions=True)
        let_go.set()
        return [error for error in ended if isinstance(error, StoreDown)]

    with guarded(tmp_path, job) as ended:
        assert [error.undecided for error in ended] == [True, False]
    assert made == []


def test_a_queue_that_moves_is_no_outage(tmp_path: Path) -> None:
    async def job(guard: StoreGuard, _store: Store) -> float:
        begun = time.monotonic()
        await asyncio.gather(*[guard.run(lambda: time.sleep(0.45 * GRACE_S)) for _ in range(4)])
        return time.monotonic() - begun

    with guarded(tmp_path, job) as seconds:
        assert seconds > 1.5 * GRACE_S


def test_a_fault_of_one_call_is_no_outage(tmp_path: Path) -> None:
    async def job(guard: StoreGuard, store: Store) -> None:
        with pytest.raises(sqlite3.OperationalError):
            await guard.run(lambda: sqlite3.connect(":memory:").execute("SELECT * FROM nowhere"))
        with pytest.raises(ValueError, match="mine"):
            await guard.run(lambda: (_ for _ in ()).throw(ValueError("mine")))
        assert guard.problem is None
        Conversation(store).turn("t1")
        assert await guard.run(lambda: store.turns.get("t1")) is not None

    with guarded(tmp_path, job):
        pass


def test_what_is_lost_is_written_once(tmp_path: Path) -> None:
    async def job(guard: StoreGuard, store: Store) -> None:
        guard.lose("turns_not_recorded_locked")
        guard.lose("turns_not_recorded_locked")
        lock = Lock(tmp_path / "store.sqlite")
        lock.take()
        await guard.probe()
        assert guard.problem is Outage.LOCKED
        assert guard.unsaved == {"turns_not_recorded_locked": 2}
        lock.close()
        await guard.probe()
        await guard.probe()
        assert guard.unsaved == {}
        assert guard.lost == {"turns_not_recorded_locked": 2}
        assert store.status.counts().counters["turns_not_recorded_locked"] == 2

    with guarded(tmp_path, job):
        pass
