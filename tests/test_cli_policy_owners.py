"""`policy`, `sessions` and `status` where each user has a policy: whose it is is shown, and can be asked for."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from openclaw_rl.cli import main
from openclaw_rl.config_render import write_private_json
from openclaw_rl.store import Store
from openclaw_rl.supervision.state import child_config_path
from openclaw_rl.supervision.status_owners import owners_report
from tests.training.test_cycle import make_loop
from tests.training.test_turns_of_owners import config_of, give, work_off


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ann and Bob have a version each; one more sample of Ann's waits."""
    for name in [name for name in os.environ if name.startswith("OPENCLAW_RL_")]:
        monkeypatch.delenv(name)
    config = config_of(tmp_path)
    write_private_json(config, child_config_path(tmp_path))
    store = Store.open(config.store_path)
    give(store, "ann", 0, 1)
    give(store, "bob", 10, 11)
    work_off(make_loop(config, store))
    give(store, "ann", 2)
    report = owners_report(store, config, time.time())
    assert report is not None
    assert (report.seen, report.trained, report.waiting, report.due) == (2, 2, 1, 0)
    assert report.words()[0] == "2 seen, 2 with a policy of their own; one policy per user"
    assert "ann: policy-v1, 1 samples wait" in report.words()
    assert owners_report(store, config.model_copy(update={"policies": type(config.policies)()}), 0.0) is None
    store.close()
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], run_dir: Path, *arguments: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main([*arguments, "--run-dir", str(run_dir)]) == code
    said = capsys.readouterr()
    return said.out if code == 0 else said.err


def in_service(run_dir: Path, owner: str) -> int:
    store = Store.open(run_dir / "store.sqlite")
    try:
        return store.versions.serving(owner).version
    finally:
        store.close()


def test_versions_say_whose_they_are(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    rows = json.loads(run(capsys, run_dir, "policy", "list", "--json"))
    assert [(row["name"], row["owner"]) for row in rows] == [
        ("base", None),
        ("policy-v1", "ann"),
        ("policy-v2", "bob"),
    ]
    assert "owner" in run(capsys, run_dir, "policy", "list")
    rows = json.loads(run(capsys, run_dir, "policy", "list", "--user", "bob", "--json"))
    assert [row["name"] for row in rows] == ["policy-v2"]
    assert "policy-v1" in run(capsys, run_dir, "policy", "show", "serving", "--user", "ann")
    said = run(capsys, run_dir, "policy", "show", "policy-v1", "--user", "bob", code=2)
    assert "policy-v1 is no version of bob's policy" in said

    assert "--user NAME" in run(capsys, run_dir, "policy", "rollback", "base", code=2)
    assert "in place of policy-v1" in run(capsys, run_dir, "policy", "rollback", "base", "--user", "ann")
    assert (in_service(run_dir, "ann"), in_service(run_dir, "bob")) == (0, 2)
    assert "stays in service" in run(capsys, run_dir, "policy", "pin", "policy-v1")
    assert in_service(run_dir, "ann") == 1
    assert "no version was pinned" in run(capsys, run_dir, "policy", "unpin", "--user", "bob")
    assert "policy-v1 may be followed" in run(capsys, run_dir, "policy", "unpin", "--user", "ann")

    listed = json.loads(run(capsys, run_dir, "sessions", "list", "--user", "ann", "--json"))
    assert [(one["session_id"], one["user"]) for one in listed] == [("session-ann", "ann")]
    told = run(capsys, run_dir, "sessions", "delete", "--user", "ann", "--yes")
    assert "deleted 1 session" in told
    assert "policy-v1" in told
    assert json.loads(run(capsys, run_dir, "sessions", "list", "--user", "bob", "--json"))
