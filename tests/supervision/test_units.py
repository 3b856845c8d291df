"""The parts of the supervisor that need no process."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import sqlite3
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.config import Config, EngineConfig, ServingConfig, TrainingConfig
from openclaw_rl.config_render import write_private, write_private_json
from openclaw_rl.config_sources import ConfigError, load_json
from openclaw_rl.serving.engines.replicas.gpus import gpus_of_each
from openclaw_rl.serving.engines.replicas.worker import replica_config
from openclaw_rl.store import Store
from openclaw_rl.supervision.child import module_of
from openclaw_rl.supervision.children import Backoff, Child, loop_environment, rotate_log
from openclaw_rl.supervision.ports import base_url, engine_addresses, resolve_ports
from openclaw_rl.supervision.state import (
    ChildPhase,
    ChildState,
    Exit,
    Phase,
    SupervisorState,
    process_alive,
    process_created_at,
    read_state,
)
from openclaw_rl.supervision.status import Condition, assess, collect, duration, render
from openclaw_rl.supervision.supervisor import prepare
from openclaw_rl.types import LoopName, LoopStatus
from tests.supervision.waiting import eventually

NOW = 1_800_000_000.0


def child(phase: ChildPhase = ChildPhase.RUNNING, pid: int | None = None, **changes: object) -> ChildState:
    values = {"phase": phase, "pid": pid, "created_at": NOW, "since": NOW - 100, **changes}
    return ChildState(**values)  # type: ignore[arg-type]


def said(pid: int, age: float, waiting_for: str | None = None) -> LoopStatus:
    return LoopStatus(
        loop=LoopName.TRAINING,
        pid=pid,
        heartbeat_at=NOW - age,
        activity="step 3",
        waiting_for=waiting_for,
        since=NOW - 40,
        details={},
    )


def test_backoff_doubles_up_to_its_maximum_and_resets_after_a_stable_life() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.after(1.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.after(60.0) == 0.5
    assert backoff.after(59.9) == 1.0


@given(st.floats(0.01, 10), st.floats(0.01, 100), st.lists(st.floats(0, 59), max_size=20))
def test_backoff_never_falls_while_nothing_is_stable(first: float, maximum: float, lives: list[float]) -> None:
    backoff = Backoff(first, maximum)
    waits = [backoff.after(life) for life in lives]
    assert waits == sorted(waits)
    assert all(first <= wait <= max(first, maximum) for wait in waits)


def test_exits_in_words() -> None:
    assert Exit.of(-9, NOW).words().startswith("killed by signal 9 (SIGKILL) at ")
    assert Exit.of(3, NOW).words().startswith("exited with code 3 at ")
    assert Exit.of(-9, NOW) == Exit(code=None, signal=9, at=NOW)


def test_a_dead_loop_says_when_it_comes_back() -> None:
    dead = child(ChildPhase.RESTARTING, last_exit=Exit.of(-9, NOW - 1), next_start_at=NOW + 0.5, restarts=2)
    report = assess(LoopName.TRAINING, dead, said(1, 1.0), NOW)
    assert report.condition is Condition.RESTARTING
    assert report.text == f"{Exit.of(-9, NOW - 1).words()}, restarting in 0.5 s"
    assert report.restarts == 2


def test_a_loop_that_has_not_reported_since_its_start_is_starting() -> None:
    report = assess(LoopName.TRAINING, child(pid=os.getpid()), said(os.getpid() + 1, 1.0), NOW)
    assert report.condition is Condition.STARTING
    assert report.since == NOW - 100


def test_a_loop_that_waits_says_for_what_and_since_when() -> None:
    report = assess(LoopName.TRAINING, child(pid=os.getpid()), said(os.getpid(), 1.0, "3 of 8 samples"), NOW)
    assert report.condition is Condition.WAITING
    assert report.text == "waiting for 3 of 8 samples"
    assert report.since == NOW - 40


@pytest.mark.parametrize(("age", "condition"), [(9.9, Condition.WORKING), (10.1, Condition.SILENT)])
def test_a_loop_is_silent_after_ten_seconds(age: float, condition: Condition) -> None:
    report = assess(LoopName.TRAINING, child(pid=os.getpid()), said(os.getpid(), age), NOW)
    assert report.condition is condition
    assert "step 3" in report.text


def test_a_loop_without_a_supervisor_whose_process_is_gone() -> None:
    gone = 2**22 + 1  # above the largest pid that Linux gives
    assert assess(LoopName.TRAINING, None, said(gone, 1.0), NOW).condition is Condition.GONE
    assert assess(LoopName.TRAINING, None, None, NOW).condition is Condition.GONE


def test_status_where_nothing_ever_ran(tmp_path: Path) -> None:
    report = collect(tmp_path / "nothing")
    assert render(report).startswith(f"no deployment in {tmp_path}/nothing: start one with: openclaw-rl up ")
    assert not (tmp_path / "nothing").exists()
    assert "no deployment in ./openclaw-run" in collect(Path("openclaw-run")).headline


def test_the_state_of_a_supervisor_reads_back(tmp_path: Path) -> None:
    state = SupervisorState(
        phase=Phase.READY,
        pid=os.getpid(),
        created_at=process_created_at(os.getpid()) or 0.0,
        started_at=NOW,
        run_dir=str(tmp_path),
        url="http://127.0.0.1:1/v1",
        engine_url="http://127.0.0.1:2",
        children={
            "training": child(pid=12),
            "engine": child(ChildPhase.RESTARTING, last_exit=Exit.of(-9, NOW), next_start_at=NOW),
        },
    )
    state.write()
    assert read_state(tmp_path) == state
    assert state.alive


def test_a_broken_state_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "supervisor.json").write_text('{"pid": 3}')
    with pytest.raises(ConfigError, match=r"supervisor\.json"):
        read_state(tmp_path)


def test_a_pid_used_again_is_another_process() -> None:
    created_at = process_created_at(os.getpid())
    assert process_alive(os.getpid(), created_at)
    assert created_at is not None
    assert not process_alive(os.getpid(), created_at - 100)
    assert not process_alive(2**22 + 1, created_at)


def test_each_loop_gets_its_threads_and_none_of_our_variables() -> None:
    config = Config(engine=EngineConfig(threads=3), training=TrainingConfig(threads=2))
    inherited = {
        "OPENCLAW_RL_TRAINING__LR": "1",
        "OPENCLAW_RL_LOG_LEVEL": "DEBUG",
        "PATH": "/bin",
        "OMP_NUM_THREADS": "9",
    }
    engine = loop_environment(LoopName.ENGINE, config, inherited)
    assert (engine["OMP_NUM_THREADS"], engine["MKL_NUM_THREADS"]) == ("3", "3")
    assert loop_environment(LoopName.TRAINING, config, inherited)["OMP_NUM_THREADS"] == "2"
    gateway = loop_environment(LoopName.GATEWAY, config, inherited)
    assert gateway["OMP_NUM_THREADS"] == "1"
    assert gateway["HF_HUB_OFFLINE"] == "1"
    assert gateway["PATH"] == "/bin"
    assert gateway["OPENCLAW_RL_LOG_LEVEL"] == "DEBUG"
    assert "OPENCLAW_RL_TRAINING__LR" not in gateway


def test_ports_are_resolved_to_free_ones_that_differ() -> None:
    config = resolve_ports(Config(serving=ServingConfig(port=0)))
    assert config.serving.port > 0
    assert config.engine.port > 0
    assert config.serving.port != config.engine.port


def test_a_taken_port_is_an_error_that_names_it() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"serving\.port {port}.*port 0 takes a free one"):
            resolve_ports(Config(serving=ServingConfig(port=port)))


def test_the_engine_leaves_a_core_to_the_others(tmp_path: Path) -> None:
    prepared = prepare(Config(run_dir=tmp_path, serving=ServingConfig(port=0)))
    assert prepared.engine.threads == max(1, len(os.sched_getaffinity(0)) - 1)
    assert prepare(Config(serving=ServingConfig(port=0))).run_dir == Path.cwd() / "openclaw-run"


def test_urls_can_be_connected_to() -> None:
    assert base_url("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert base_url("::1", 80) == "http://[::1]:80"


def test_logs_are_rotated_by_size(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    for text in ("first", "second", "third"):
        log.write_text(text)
        rotate_log(log, max_bytes=3, kept=2)
    assert not log.exists()
    assert [path.read_text() for path in (tmp_path / "engine.log.1", tmp_path / "engine.log.2")] == [
        "third",
        "second",
    ]
    log.write_text("abc")
    rotate_log(log, max_bytes=3)
    assert log.read_text() == "abc"


def test_a_private_file_is_private_even_where_one_was_before(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("open")
    path.chmod(0o644)
    write_private(path, "secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "secret"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("seconds", "text"), [(8.9, "8 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (-1, "0 s")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_record_that_cannot_be_read_is_told_and_what_the_supervisor_knows_is_shown(tmp_path: Path) -> None:
    began = process_created_at(os.getpid())
    assert began is not None
    SupervisorState(
        phase=Phase.READY,
        pid=os.getpid(),
        created_at=began,
        started_at=began,
        run_dir=str(tmp_path),
        url="http://127.0.0.1:1/v1",
        engine_url="http://127.0.0.1:2",
        children={
            "training": child(pid=os.getpid()),
            "engine": child(ChildPhase.RESTARTING, last_exit=Exit.of(-9, NOW), next_start_at=NOW + 2),
        },
    ).write()
    (tmp_path / "store.sqlite").write_bytes(b"no database at all" * 100)
    report = collect(tmp_path, NOW)
    assert report.running
    assert report.progress is None
    text = render(report, NOW)
    assert f"the record {tmp_path / 'store.sqlite'} cannot be read: file is not a database" in text
    assert "training  its process lives; what it says cannot be read" in text
    assert "killed by signal 9" in text


def test_a_child_comes_back_whatever_becomes_of_the_clock(tmp_path: Path) -> None:
    times = iter([NOW, NOW, NOW, NOW - 1e6, NOW - 1e6])  # set back by days once it has ended
    command = [sys.executable, "-c", ""]
    log = tmp_path / "log"
    one = Child(LoopName.ROLLOUT, command, os.environ, log, Backoff(0.01, 0.01), wall=lambda: next(times, NOW - 1e6))
    one.start()
    ended = eventually(lambda: one.reap(restart=True), "it ends")
    assert ended.code == 0
    assert eventually(one.start_if_due, "it is started again")
    eventually(lambda: one.reap(restart=False), "it ends again")


def test_a_child_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = folder / "rollout.log"
    one = Child(LoopName.ROLLOUT, [sys.executable, "-c", ""], os.environ, log, Backoff(0.01, 0.01))
    one.start()
    eventually(lambda: one.reap(restart=True), "it ends")
    log.unlink()
    folder.rmdir()
    assert eventually(one.start_if_due, "a start is tried")
    assert one.state.phase is ChildPhase.RESTARTING
    assert not one.running
    folder.mkdir()
    eventually(lambda: one.start_if_due() and one.running, "it is started")
    assert one.state.restarts == 1
    eventually(lambda: one.reap(restart=False), "it ends again")


def test_status_asks_the_gateway_what_the_record_cannot_say(tmp_path: Path) -> None:
    """While the record is down only the gateway knows what is lost; what it has written down is not counted twice."""
    Store.open(tmp_path / "store.sqlite").close()
    body = {"record": {"problem": "locked", "since": NOW - 65, "unsaved": {"turns_not_recorded_locked": 3}}}
    with readiness_of(body) as url:
        prepare_state(tmp_path, url)
        report = collect(tmp_path, NOW)
        assert report.record is not None
        assert report.progress is not None
        assert report.progress.not_recorded == {"locked": 3}
        text = render(report, NOW)
        assert (
            "the record cannot be written: another process holds its lock, for 1 min 5 s; "
            "meanwhile turns_not_recorded_locked 3" in text
        )
        assert "unwritten served and not recorded: locked 3" in text
        store = Store.open(tmp_path / "store.sqlite")
        store.status.count("turns_not_recorded_locked", 3)
        store.status.count("requests_refused_disk_full", 2)
        store.close()
        body["record"] = {"problem": None, "since": None, "unsaved": {}}
        text = render(collect(tmp_path, NOW), NOW)
    assert "the record cannot be written" not in text
    assert "unwritten served and not recorded: locked 3" in text
    assert "refused   not recorded, so not served: disk_full 2" in text


def test_status_of_a_store_of_another_version_says_so(tmp_path: Path) -> None:
    Store.open(tmp_path / "store.sqlite").close()
    connection = sqlite3.connect(tmp_path / "store.sqlite")
    with connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999_later'")
    connection.close()
    prepare_state(tmp_path, "http://127.0.0.1:1/v1")
    report = collect(tmp_path, NOW)
    assert report.problem is not None
    assert "the schema of another version of openclaw-rl" in report.problem
    assert report.record is None, "no gateway answers"


@contextlib.contextmanager
def readiness_of(body: dict[str, Any]) -> Iterator[str]:
    """A gateway that says this of itself, and that it is not ready, which makes no difference."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if self.path == "/readyz" else 404)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def prepare_state(run_dir: Path, url: str) -> None:
    """What a supervisor that lives leaves in its directory."""
    began = process_created_at(os.getpid())
    assert began is not None
    write_private_json(Config(run_dir=run_dir), run_dir / "config.json")
    SupervisorState(
        phase=Phase.READY,
        pid=os.getpid(),
        created_at=began,
        started_at=began,
        run_dir=str(run_dir),
        url=url,
        engine_url="http://127.0.0.1:2",
        children={"gateway": child(pid=os.getpid())},
    ).write()


def test_each_replica_has_a_port_of_its_own_and_its_share_of_the_threads() -> None:
    config = resolve_ports(Config.model_validate({"serving": {"port": 0}, "engine": {"replicas": 3, "threads": 7}}))
    ports = config.engine.replica_ports
    assert [urlsplit(url).port for url in engine_addresses(config)] == list(ports)
    assert all(name == address for name, address in engine_addresses(config).items())
    assert ports[0] == config.engine.port
    assert len({*ports, config.serving.port}) == 4
    second = replica_config(config, 1)
    assert (second.engine.port, second.engine.threads, second.engine.urls) == (ports[1], 2, ())
    assert module_of(LoopName.ENGINE, config) != module_of(LoopName.ENGINE, second)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_replica_speaks_for_one_server_of_several(kind: str) -> None:
    servers = ("http://10.0.0.1:8000", "http://10.0.0.2:8000")
    config = resolve_ports(Config.model_validate({"serving": {"port": 0}, "engine": {"kind": kind, "urls": servers}}))
    assert tuple(engine_addresses(config)) == servers, "as people know them, whatever is restarted"
    assert not set(engine_addresses(config).values()) & set(servers), "the gateway asks those who speak for them"
    each = [replica_config(config, number) for number in range(2)]
    assert [one.engine.urls for one in each] == [servers[:1], servers[1:]]
    assert [one.engine.port for one in each] == list(config.engine.replica_ports)
    assert all(one.engine.count == 1 for one in each)
    assert all(one.supervisor.shutdown_timeout_s < config.supervisor.shutdown_timeout_s for one in each)


def test_ports_of_replicas_can_be_said() -> None:
    found = resolve_ports(Config.model_validate({"serving": {"port": 0}, "engine": {"replicas": 2}}))
    ports = found.engine.replica_ports
    said = {"replicas": 2, "replica_ports": ports}
    again = resolve_ports(Config.model_validate({"serving": {"port": 0}, "engine": said}))
    assert again.engine.replica_ports == ports
    assert again.engine.port == ports[0]
    taken = rf"engine\.replica_ports {ports[1]}: .* without it each takes a free one"
    with socket.create_server(("127.0.0.1", ports[1])), pytest.raises(ConfigError, match=taken):
        resolve_ports(Config.model_validate({"serving": {"port": 0}, "engine": said}))
    with pytest.raises(ConfigError, match=r"serving\.port and engine\.replica_ports are both"):
        resolve_ports(Config.model_validate({"serving": {"port": ports[1]}, "engine": said}))


def test_no_port_of_ours_is_that_of_a_server_that_may_come_back() -> None:
    found = resolve_ports(Config.model_validate({"serving": {"port": 0}, "engine": {"replicas": 2}}))
    port = found.engine.replica_ports[0]
    engine = {"kind": "vllm", "urls": [f"http://localhost:{port}", "http://10.0.0.1:1"]}
    with pytest.raises(ConfigError, match=f"engine.urls names port {port} of this machine"):
        resolve_ports(Config.model_validate({"serving": {"port": port}, "engine": engine}))


GPUS = [
    ({}, {}, 0, [{}, {}]),  # a CPU
    ({}, {}, 4, [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]),
    ({}, {"CUDA_VISIBLE_DEVICES": "5,7,9"}, 10, [{"CUDA_VISIBLE_DEVICES": "5"}, {"CUDA_VISIBLE_DEVICES": "7"}]),
    ({}, {"CUDA_VISIBLE_DEVICES": " 5, 7"}, 10, [{"CUDA_VISIBLE_DEVICES": "5"}, {"CUDA_VISIBLE_DEVICES": "7"}]),
    ({}, {"CUDA_VISIBLE_DEVICES": ""}, 4, [{}, {}]),  # hidden from us
    ({}, {"CUDA_VISIBLE_DEVICES": "-1"}, 4, [{}, {}]),
    ({}, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0, [{}, {}]),
    ({"model": {"device": "cpu"}}, {}, 4, [{}, {}]),
    ({"engine": {"kind": "embedded", "replicas": 2}}, {}, 1, [{}, {}]),
    ({"engine": {"kind": "vllm", "urls": ["http://a:1", "http://b:1"]}}, {}, 1, [{}, {}]),  # they run already
]


@pytest.mark.parametrize(("more", "environment", "here", "expected"), GPUS)
def test_servers_that_are_started_here_share_no_gpu(
    more: dict[str, Any], environment: dict[str, str], here: int, expected: list[dict[str, str]]
) -> None:
    config = Config.model_validate({"engine": {"kind": "vllm", "replicas": 2}, **more})
    assert gpus_of_each(config, environment, here) == expected


def test_fewer_gpus_than_servers_are_an_error() -> None:
    config = Config.model_validate({"engine": {"kind": "sglang", "replicas": 2}})
    with pytest.raises(ConfigError, match=r"engine.replicas = 2, and there are 1 GPUs .*model.device = cpu"):
        gpus_of_each(config, {}, 1)


def test_a_configuration_of_before_is_read_as_it_was_meant(tmp_path: Path) -> None:
    """Replicas of our own had their addresses in `engine.urls`."""
    path = tmp_path / "config.json"
    urls = ["http://127.0.0.1:4001", "http://127.0.0.1:4002"]
    path.write_text(json.dumps({"engine": {"replicas": 2, "urls": urls}}))
    assert tuple(engine_addresses(load_json(path))) == tuple(urls)
