"""`openclaw-rl engine`: replicas named, drained and taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.cli import MISUSED, OK, main
from openclaw_rl.config import Config
from openclaw_rl.config_render import write_private_json
from openclaw_rl.serving.engines.replicas.drains import DrainList
from openclaw_rl.supervision.state import child_config_path
from openclaw_rl.supervision.status_replicas import ReplicaLine, replicas_of
from openclaw_rl.types import LoopName, LoopStatus

PORTS = (4001, 4002)
URLS = tuple(f"http://127.0.0.1:{port}" for port in PORTS)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    config = Config.model_validate({"run_dir": tmp_path, "engine": {"replicas": 2, "replica_ports": PORTS}})
    write_private_json(config, child_config_path(tmp_path))
    return tmp_path


def engine(run_dir: Path, *arguments: str) -> int:
    return main(["engine", *arguments, "--run-dir", str(run_dir)])


def test_drain_undrain_and_list(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine(run_dir, "drain", URLS[0]) == OK
    assert "gets no new requests" in capsys.readouterr().out
    assert DrainList(run_dir).read() == {URLS[0]}
    assert engine(run_dir, "list") == OK
    shown = capsys.readouterr().out
    assert shown.splitlines() == [f"{URLS[0]}  draining", f"{URLS[1]}  the gateway has not said how it is"]
    assert engine(run_dir, "drain", URLS[1]) == MISUSED
    assert "is the last replica that takes requests" in capsys.readouterr().err
    assert engine(run_dir, "undrain", URLS[0]) == OK
    assert DrainList(run_dir).read() == frozenset()


def test_what_is_no_replica_is_refused(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine(run_dir, "drain", "http://127.0.0.1:4003") == MISUSED
    assert "no replica http://127.0.0.1:4003: the nearest is http://127.0.0.1:400" in capsys.readouterr().err
    assert engine(tmp_path / "nowhere", "list") == MISUSED
    assert "no deployment" in capsys.readouterr().err
    write_private_json(Config(run_dir=tmp_path), child_config_path(tmp_path))
    assert engine(tmp_path, "list") == MISUSED
    assert "has one engine" in capsys.readouterr().err


def said(details: dict[str, Any]) -> LoopStatus:
    return LoopStatus(
        loop=LoopName.GATEWAY,
        pid=1,
        heartbeat_at=1.0,
        activity="serving",
        waiting_for=None,
        since=1.0,
        details=details,
    )


def test_status_has_a_line_for_each() -> None:
    seen = [
        {"url": URLS[0], "state": "ready", "requests": 1, "versions": [0, 3]},
        {"url": URLS[1], "state": "away: lost", "requests": 0, "versions": []},
    ]
    first, second = replicas_of(said({"replicas": seen}))
    assert first.words() == f"{URLS[0]}  ready, 1 request, base and policy-v3"
    assert second.words() == f"{URLS[1]}  away: lost, 0 requests, no version"
    assert ReplicaLine(url="u", state="ready", requests=2, versions=(0, 1, 2)).words() == (
        "u  ready, 2 requests, base, policy-v1 and policy-v2"
    )
    assert replicas_of(None) == replicas_of(said({})) == ()


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"kind": "embedded", "urls": URLS}, "starts engine.replicas of it"),
        ({"kind": "embedded", "urls": URLS, "replicas": 2}, "starts engine.replicas of it"),
        ({"kind": "vllm", "urls": URLS, "replicas": 3}, "engine.replicas = 3, and engine.urls names 2"),
        ({"replicas": 3, "replica_ports": PORTS}, "names 2 ports, and there are 3 replicas"),
        ({"replicas": 2, "replica_ports": (4001, 4001)}, "names one port twice"),
        ({"replicas": 2, "replica_ports": (4001, 4002, 4002)}, "names 3 ports, and there are 2 replicas"),
        ({"replica_ports": (4001,)}, "is for several engines"),
        ({"kind": "openai", "urls": URLS, "upstream_model": "m", "replica_ports": PORTS}, "is for several engines"),
        ({"kind": "openai", "urls": URLS, "upstream_model": "m", "replicas": 2}, "name each in engine.urls"),
    ],
)
def test_replicas_are_either_started_or_named(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config.model_validate({"engine": section})


@pytest.mark.parametrize(
    ("section", "count"),
    [
        ({}, 1),
        ({"replicas": 3}, 3),
        ({"kind": "vllm", "replicas": 2}, 2),
        ({"kind": "sglang", "urls": URLS}, 2),
        ({"kind": "vllm", "urls": URLS, "replicas": 2}, 2),
        ({"kind": "openai", "urls": URLS, "upstream_model": "m"}, 2),
    ],
)
def test_how_many_there_are(section: dict[str, Any], count: int) -> None:
    assert Config.model_validate({"engine": section}).engine.count == count
