"""`judge try`, `judge replay` and `up --eval`, as a person types them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.cli import main
from openclaw_rl.cli_judge import parse_since
from openclaw_rl.config import Config, JudgeConfig
from openclaw_rl.config_render import write_private_json
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.store import Store
from openclaw_rl.supervision.state import child_config_path
from tests.builders import Conversation, make_config, make_judgement

CASES = [
    {"score": 1, "corrective": False, "text": "[good] Thanks!"},
    {"score": -1, "corrective": True, "text": "[bad] hint: Be short."},
    {"score": -1, "corrective": True, "text": "[good] 不对"},
    {"score": 1, "corrective": False, "text": "[tie]"},
    {"score": 0, "corrective": False, "text": "[neutral]"},
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OPENCLAW_RL_") or name == "PRM_M"]:
        monkeypatch.delenv(name)


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    file = tmp_path / "cases.jsonl"
    rows = [
        {
            "task": "Say hello.",
            "output": "Hello.",
            "next_state": {"role": "user", "content": case["text"]},
            "score": case["score"],
            "corrective": case["corrective"],
        }
        for case in CASES
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    return capsys.readouterr().err.strip()


def test_try_for_programs(capsys: pytest.CaptureFixture[str], cases: Path) -> None:
    report = json.loads(printed(capsys, "judge", "try", str(cases), "--judge.kind", "scripted", "--json"))
    assert (report["kind"], report["cases"]) == ("scripted", 5)
    assert (report["accuracy"], report["accuracy_signed"]) == (3 / 5, 2 / 4)
    assert report["by_language"] == {
        "en": {"cases": 4, "accuracy": 3 / 4, "accuracy_signed": 2 / 3},
        "zh": {"cases": 1, "accuracy": 0.0, "accuracy_signed": 0.0},
    }
    assert (report["hint_precision"], report["hint_recall"]) == (1.0, 0.5)
    assert report["confusion"] == {"1>1": 1, "-1>-1": 1, "-1>1": 1, "1>none": 1, "0>0": 1}
    assert report["failures"] == {"tie": 1}
    assert set(report["latency"]) == {"mean_s", "median_s", "max_s"}
    assert report["misjudged"] == [2, 3]
    assert report["raw_outputs"]["3"] == {"outcome": "tie"}


def test_try_for_people(capsys: pytest.CaptureFixture[str], cases: Path) -> None:
    said = printed(capsys, "judge", "try", str(cases), "--judge.kind", "scripted")
    for words in ("scripted (scripted@1), 5 cases", "60 % of all, 50 % of ±1", "in zh", "tie: 1", "case 3: "):
        assert words in said


def test_try_says_what_is_wrong(capsys: pytest.CaptureFixture[str], cases: Path, tmp_path: Path) -> None:
    assert "No such file" in refused(capsys, "judge", "try", "nowhere.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"task": "t"}\n')
    assert "line 1: missing output" in refused(capsys, "judge", "try", "bad.jsonl")
    said = refused(capsys, "judge", "try", str(cases), "--judge.kind", "llm")
    assert "without judge.base_url asks the deployment in openclaw-run, and none runs there" in said
    assert "nearest valid name is --json" in refused(capsys, "judge", "try", str(cases), "--jsn")


def test_try_of_an_endpoint_that_is_not_there(capsys: pytest.CaptureFixture[str], cases: Path) -> None:
    flags = ["--judge.kind", "llm", "--judge.base_url", "http://127.0.0.1:9/v1", "--judge.max_retries", "0"]
    assert "the judge cannot be asked (connection)" in refused(capsys, "judge", "try", str(cases), *flags)


def test_try_a_reward_model_of_ones_own(capsys: pytest.CaptureFixture[str], cases: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(prompt, response, next_state):\n    return None if 'tie' in next_state else 10.0\n"
    )
    flags = ["--judge.kind=custom", "--custom-rm-path", "mine.py:score", "--judge.score_range", "0,10", "--json"]
    report = json.loads(printed(capsys, "judge", "try", str(cases), *flags))
    assert report["confusion"] == {"1>1": 1, "-1>1": 2, "1>none": 1, "0>1": 1}
    assert report["failures"] == {"absent": 1}
    assert report["raw_outputs"]["1"] == {"outcome": "scored", "by": "custom", "raw": 10.0, "range": [0.0, 10.0]}


def deployment(tmp_path: Path, **judge: Any) -> tuple[Config, Store]:
    """What a deployment that has judged two turns leaves behind."""
    config = make_config(tmp_path / "run", judge=JudgeConfig(kind="scripted", **judge))
    store = Store.open(config.store_path)
    child_config_path(config.run_dir).parent.mkdir(parents=True, exist_ok=True)
    write_private_json(config, child_config_path(config.run_dir))
    Conversation(store).chain("start", "[bad]", "[good]")
    for _ in range(2):
        run_pass(store, config, time.time())
    for turn, _ in store.turns.claim_for_judging(9, 60):
        store.turns.record_judgement(make_judgement(turn.turn_id, 1.0))
    run_pass(store, config, time.time())
    return config, store


def test_replay_by_the_deployments_own_judge(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config, store = deployment(tmp_path)
    command = ["judge", "replay", "--since", "1h", "--run-dir", str(config.run_dir)]
    assert "recorded only  0" in printed(capsys, *command, "--no-record")
    assert len(store.turns.judgements()) == 2
    report = json.loads(printed(capsys, *command, "--json"))
    assert (report["turns"], report["changed"], report["in_effect"]) == (2, 1, 2)
    assert report["verdicts"] == {"1>-1": 1, "1>1": 1}
    assert len(store.turns.judgements()) == 4
    store.close()


def test_replay_by_another_judge(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config, store = deployment(tmp_path)
    (tmp_path / "mine.py").write_text("def score(prompt, response, next_state):\n    return -1\n")
    flags = ["--run-dir", str(config.run_dir), "--judge.kind=custom", "--custom-rm-path=mine.py:score", "--json"]
    report = json.loads(printed(capsys, "judge", "replay", "--since=1d", *flags))
    assert (report["kind"], report["verdicts"]) == ("custom", {"1>-1": 2})
    store.close()


def test_replay_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no deployment has run in openclaw-run" in refused(capsys, "judge", "replay", "--since", "2h")
    assert "--since 'soon'" in refused(capsys, "judge", "replay", "--since", "soon")
    assert "--since" in refused(capsys, "judge", "replay")
    assert "--limit 0" in refused(capsys, "judge", "replay", "--since", "2h", "--limit", "0")


def test_when_since_is() -> None:
    now = 1_000_000.0
    for text, ago in (("90s", 90), ("2 min", 120), ("2m", 120), ("1.5h", 5400), ("3d", 259200)):
        assert parse_since(text, now) == now - ago
    assert parse_since("2026-01-31T12:00:00+00:00", now) == 1769860800.0
    for text in ("", "h", "yesterday", "-2h"):
        with pytest.raises(ConfigError):
            parse_since(text, now)


def test_up_for_evaluation_trains_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert "enabled = false  # --training.enabled" in printed(capsys, "up", "--eval", "--lr=1e-4", "--dry-run")
    assert "enabled = true" in printed(capsys, "up", "--dry-run")
