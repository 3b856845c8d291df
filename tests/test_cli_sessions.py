"""`openclaw-rl sessions`, as a person types it, on a run directory where nothing runs."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.cli import main
from openclaw_rl.config import ApiKey, Config
from openclaw_rl.config_render import write_private_json
from openclaw_rl.serving.gateway.auth import key_id
from openclaw_rl.store import Store
from openclaw_rl.supervision.state import child_config_path
from tests.builders import Conversation, make_config, user
from tests.sessions.lives import lived


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sessions: `life`, with everything in it, and `hers`, of the key `anna`."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OPENCLAW_RL_") or name == "PRM_M"]:
        monkeypatch.delenv(name)
    config = make_config(tmp_path / "openclaw-run", serving={"api_keys": [{"name": "anna", "key": "secret-of-anna"}]})
    assert config.serving.api_keys[0] == ApiKey.model_validate({"name": "anna", "key": "secret-of-anna"})
    store = Store.open(config.store_path)
    lived(store, config)
    talk = Conversation(store, "hers")
    request = talk.ask("hers1", [user("Words of Anna.")], key_id=key_id("anna"))
    talk.answer(request)
    store.close()
    write_private_json(config, child_config_path(config.run_dir))
    return config.run_dir


def ran(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["sessions", *argv]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["sessions", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err


def test_list_shows_no_content(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ran(capsys, "list")
    assert sorted(line.split()[0] for line in said.splitlines()) == ["hers", "id", "life"]
    assert "anna" in said
    assert "tide" not in said
    assert "Words" not in said
    listed: list[dict[str, Any]] = json.loads(ran(capsys, "list", "--json"))
    life = next(one for one in listed if one["session_id"] == "life")
    assert (life["requests"], life["turns"], life["ended_at"]) == (6, 5, None)
    assert sum(life["turns_by_state"].values()) == 5
    assert life["samples_by_state"] == {"ready": 1, "trained": 1}
    assert [one["session_id"] for one in json.loads(ran(capsys, "list", "--json", "--key", "anna"))] == ["hers"]


def test_show_goes_turn_by_turn(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ran(capsys, "show", "life")
    for words in ("Too long.", "A poem.", "next state:", "judged by scripted: -1.00, hint: Be short.", "in step 1",
                  "judged by human: -0.50, hint: Say it in French.", "side", "(no answer: client_gone)"):  # fmt: skip
        assert words in said, said
    assert "Words of Anna" not in said
    tree = json.loads(ran(capsys, "show", "life", "--json"))
    assert tree["session"]["session_id"] == "life"
    assert "Words of Anna" in ran(capsys, "show", "he")


def test_what_is_exported_can_be_deleted_and_brought_back(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(capsys, "export", "--all", "--output", "all.jsonl")
    assert Path("all.jsonl").stat().st_mode & 0o777 == 0o600
    before = ran(capsys, "export", "--all")
    assert before == Path("all.jsonl").read_text()
    deleted = json.loads(ran(capsys, "delete", "life", "--yes", "--json"))
    assert deleted["session_ids"] == ["life"]
    assert deleted["deleted"] == {
        "sessions": 1, "requests": 6, "turns": 5, "judgements": 3, "samples": 2, "record_lines": 0,
    }  # fmt: skip
    assert deleted["trained_versions"] == [{"version": 1, "name": "policy-v1", "state": "candidate", "samples": 1}]
    assert not any(b"Too long." in path.read_bytes() for path in run_dir.rglob("store*"))
    assert "5 turns added in 2 sessions, 1 were here already" in ran(capsys, "import", "all.jsonl")
    after = [json.loads(line) for line in ran(capsys, "export", "life").splitlines()]
    was = [one for one in map(json.loads, before.splitlines()) if one["session"]["session_id"] == "life"]
    for tree in (*after, *was):
        for turn in tree["turns"]:
            if turn["turn"]:
                turn["turn"]["judge_attempts"], turn["turn"]["judge_lease_until"] = 0, None
    assert after == was


def test_whoever_has_no_sessions_is_named_beside_the_output(
    run_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A slip in a name is not found in an empty table, or in an empty line of what is to be JSON."""

    def told(*argv: str) -> tuple[str, str]:
        assert main(["sessions", *argv]) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    store = Store.open(run_dir / "store.sqlite")
    for owner in ("ann@example.org", "bob@example.org"):
        Conversation(store, f"of-{owner}").turn(f"t-{owner}", owner=owner)
    store.close()
    nearest = "openclaw-rl: nobody called Anne@example.org has sessions here; the nearest name is ann@example.org\n"
    assert told("export", "--user", "Anne@example.org") == ("", nearest)
    assert told("list", "--user", "Anne@example.org", "--json") == ("[]\n", nearest)
    assert told("list", "--user", "Anne@example.org") == ("no sessions\n", nearest)
    assert told("list", "--user", "zzz")[1] == "openclaw-rl: nobody called zzz has sessions here\n"
    both = ("--user", "bob@example.org", "--key", "anna")
    assert told("list", *both)[1] == "openclaw-rl: there are no sessions of user bob@example.org of key anna\n"
    assert told("list", "--user", "bob@example.org")[1] == ""
    assert told("delete", "--user", "bob@exmple.org", "--yes")[1].endswith("the nearest name is bob@example.org\n")
    told("delete", "--key", "anna", "--yes")
    assert told("export", "--key", "anna") == ("", "openclaw-rl: there are no sessions of key anna\n")
    told("delete", "--all", "--yes")
    assert told("export", "--all") == ("", "openclaw-rl: there are no sessions\n")


def test_a_key_or_all_can_be_deleted(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "deleted 1 session: 1 turn, 1 request" in ran(capsys, "delete", "--key", "anna", "--yes")
    assert "no version was trained" not in ran(capsys, "delete", "--all", "--yes")
    assert ran(capsys, "list") == "no sessions\n"


def test_what_is_asked_wrongly_changes_nothing(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no session is called nobody" in refused(capsys, "show", "nobody")
    assert "say which sessions" in refused(capsys, "delete", "--yes")
    assert "say which sessions" in refused(capsys, "export", "life", "--all")
    assert "no key is called bert; there are anna, local" in refused(capsys, "list", "--key", "bert")
    assert "nearest valid name is --yes" in refused(capsys, "delete", "life", "--yess")
    assert "No such file" in refused(capsys, "import", "nowhere.jsonl")
    assert "holds no store" in refused(capsys, "list", "--run-dir", "elsewhere")
    assert not Path("elsewhere").exists()
    assert "add --yes" in refused_without_terminal("delete", "life")
    assert "life" in ran(capsys, "list")


def test_where_there_is_nothing_to_delete_nobody_is_asked(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "delete", "--user", "zzz"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("deleted 0 sessions")
    assert said.err == "openclaw-rl: nobody called zzz has sessions here\n"


@pytest.mark.parametrize("chosen", [["--user", ""], ["--user="], ["--key", ""], [""], ["life", ""]])
def test_an_empty_name_is_nobodys_and_deletes_nothing(
    run_dir: Path, capsys: pytest.CaptureFixture[str], chosen: list[str]
) -> None:
    before = ran(capsys, "list", "--json")
    assert "a name is wanted, and this one is empty" in refused(capsys, "delete", *chosen, "--yes")
    assert "a name is wanted, and this one is empty" in refused(capsys, "export", *chosen)
    assert ran(capsys, "list", "--json") == before
    assert "a name is wanted" in refused(capsys, "list", "--user", "")
    assert "a name is wanted" in refused(capsys, "import", "nowhere.jsonl", "--key", "")


def refused_without_terminal(*argv: str) -> str:
    program = [sys.executable, "-m", "openclaw_rl.cli", "sessions", *argv]
    done = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    return done.stderr


@pytest.mark.parametrize(("reply", "left"), [("n", True), ("", True), ("y", False)])
def test_it_asks_first(run_dir: Path, reply: str, left: bool) -> None:
    screen, terminal = pty.openpty()
    program = [sys.executable, "-m", "openclaw_rl.cli", "sessions", "delete", "hers"]
    process = subprocess.Popen(program, stdin=terminal, stdout=subprocess.PIPE, stderr=terminal, text=True)
    os.write(screen, f"{reply}\n".encode())
    said, _ = process.communicate(timeout=60)
    os.close(screen)
    os.close(terminal)
    assert "Delete this and all that came of it? [y/N]" in said
    assert "hers" in said
    store = Store.open(Config(run_dir=run_dir).store_path)
    assert (store.archive.read("hers") is not None) is left
    store.close()
    assert process.returncode == (1 if left else 0)


def test_a_store_that_is_none_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store.sqlite").write_bytes(bytes(range(256)) * 40)
    for command in (["sessions", "list"], ["policy", "list"]):
        assert main([*command, "--run-dir", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert "cannot be used: file is not a database" in said
        assert said.count("\n") == 1
