"""The commands, as a person types them."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest
from pydantic import SecretStr

from openclaw_rl import __version__
from openclaw_rl.cli import main, what_to_try
from openclaw_rl.cli_chat import _key, version_name
from openclaw_rl.config import ApiKey, Config
from openclaw_rl.config_sources import from_tree, resolve


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OPENCLAW_RL_") or name == "PRM_M"]:
        monkeypatch.delenv(name)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("openclaw-rl: ")
    assert captured.err.count("\n") == 1
    return captured.err.strip()


def resolved(capsys: pytest.CaptureFixture[str], *argv: str) -> Config:
    assert main(argv) == 0
    return resolve(from_tree(tomllib.loads(capsys.readouterr().out), "printed")).config


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"openclaw-rl {__version__}\n"


def test_dry_run_prints_the_tree_and_starts_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert resolved(capsys, "up", "--dry-run") == Config()
    flags = [
        "--training.lr=1e-4",
        "combine",
        "--dry-run",
        "--training.weight-decay",
        "0.5",
        "--set",
        "rollout.batch_size=2",
    ]
    config = resolved(capsys, "up", *flags)
    assert (config.training.lr, config.training.weight_decay, config.rollout.batch_size) == (1e-4, 0.5, 2)
    assert config.training.method == "combine"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("up",), ("demo", "--method", "binary_rl")])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--custom-loss-function-path", "nowhere:loss"), "training.custom_loss_function_path: there is no module"),
        (("--custom-loss-function-path", "mine.py:los"), "did you mean 'loss'?"),
        (("--custom-loss-function-path", "mine.py:loss"), "training.custom_loss_function_path: the function takes"),
        (("--judge.kind=custom", "--custom-rm-path", "mine.py:other"), "has no attribute 'other'"),
        (
            ("--training.gate.evaluation_path", "gone.py:rate", "--training.gate.min_evaluation=0"),
            "there is no file gone.py",
        ),
        (("--rollout-function-path", "mine.py:loss"), "must take (tasks, generate, runner)"),
        (
            ("--rollout.tasks", "gone.jsonl", "--custom-generate-function-path", "mine.py:loss"),
            "cannot read gone.jsonl",
        ),
    ],
)
def test_a_dry_run_looks_at_the_users_own_code_as_a_start_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...], options: tuple[str, ...], said: str
) -> None:
    (tmp_path / "mine.py").write_text("def loss(logprobs): return logprobs\n")
    assert said in refused(capsys, *command, "--dry-run", "--training.loss.opd_top_k=0", *options)


@pytest.mark.parametrize("command", [("up",), ("demo", "--method", "binary_rl")])
def test_a_dry_run_says_what_a_start_would_of_a_model_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    dry = (*command, "--dry-run", "--model-path", "mine")
    assert "model.path 'mine' is no directory (nor 'smollm2')" in refused(capsys, *dry)
    (tmp_path / "mine").mkdir()
    assert "model.path 'mine' holds no config.json" in refused(capsys, *dry)
    (tmp_path / "mine" / "config.json").write_text("{}")
    assert resolved(capsys, *dry).model.path == "mine"


def test_a_model_that_nothing_here_would_load_may_be_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """An upstream that somebody else started knows where its model is; with SGLang's its tokenizer is read here."""
    options = ("--model-path", "mine", "--eval", "--engine.urls", '["http://127.0.0.1:9"]')
    upstream = ("--backend", "openai", "--engine.upstream_model", "theirs", *options)
    assert resolved(capsys, "up", "--dry-run", *upstream).model.path == "mine"
    for said in (("--backend", "sglang", *options), ("--backend", "sglang", *options[:3])):
        assert "model.path 'mine' is no directory" in refused(capsys, "up", "--dry-run", *said)


def test_a_recipe_by_path_and_one_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[training]\nlr = 0.5\n")
    assert resolved(capsys, "up", "mine.toml", "--dry-run").training.lr == 0.5
    message = refused(capsys, "up", "nowhere")
    assert "no such recipe: nowhere; there are binary_rl, combine" in message


@pytest.mark.parametrize("method", ["combine", "binary_rl", "opd"])
def test_the_demo_takes_the_recipe_of_its_method(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, method: str
) -> None:
    config = resolved(capsys, "demo", "--dry-run", "--method", method, "--seed", "5", "--lora-rank", "2")
    assert (config.training.method.value, config.training.seed, config.training.lora.rank) == (method, 5, 2)
    assert config.serving.port == 0
    assert list(tmp_path.iterdir()) == []


def test_the_demo_refuses_what_it_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert "terse" in refused(capsys, "demo", "--preference", "rude", "--dry-run")
    assert "interactions" in refused(capsys, "demo", "--interactions", "0", "--dry-run")


@pytest.mark.parametrize(
    ("argv", "nearest"),
    [
        (["up", "--trainng.lr", "1"], "--training.lr"),
        (["up", "--lrr", "1"], "--lr"),
        (["up", "--training.learning_rate", "1"], "--training.lr"),
        (["up", "--learning-rat", "1"], "--lr"),
        (["up", "--model", "x"], "--model-path"),
        (["status", "--josn"], "--json"),
        (["chat", "--rundir", "x"], "--run-dir"),
        (["--verison"], "--version"),
    ],
)
def test_an_unknown_flag_names_the_nearest(capsys: pytest.CaptureFixture[str], argv: list[str], nearest: str) -> None:
    assert refused(capsys, *argv).endswith(f"the nearest valid name is {nearest}")


def test_a_flag_of_the_system_before_says_what_to_do_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--training.log wandb" in refused(capsys, "up", "--use-wandb")
    assert "embedded, vllm, sglang, openai and scripted" in refused(capsys, "up", "--backend", "tinker", "--dry-run")


def test_a_switch_may_stand_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (("--offload-optimizer-state",), ("--offload-optimizer-state", "true")):
        assert main(["up", "--use-lora", "false", *flags, "--dry-run"]) == 0
        shown = capsys.readouterr().out
        assert "use_lora = false" in shown
        assert "offload_optimizer_state = true" in shown
    assert main(["up", "--use-lora", "--dry-run"]) == 0
    assert "use_lora = true" in capsys.readouterr().out
    assert "perhaps" in refused(capsys, "up", "--use-lora", "perhaps", "--dry-run")


def test_misuse_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected one argument" in refused(capsys, "up", "--port")
    assert "invalid choice" in refused(capsys, "serve")
    assert "required" in refused(capsys)
    assert "not valid TOML" in refused(capsys, "up", write("x = "))


def write(text: str) -> str:
    Path("broken.toml").write_text(text)
    return "broken.toml"


def test_an_unknown_variable_stops_every_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW_RL_SERVING__PROT", "1")
    assert refused(capsys, "up", "--dry-run").endswith("OPENCLAW_RL_SERVING__PORT")
    assert refused(capsys, "status").endswith("OPENCLAW_RL_SERVING__PORT")


def test_status_and_chat_where_nothing_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["status"]) == 1
    assert capsys.readouterr().out.startswith("no deployment in ./openclaw-run: start one with")
    assert main(["status", "--json", "--run-dir", "other"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["running"], report["run_dir"], report["loops"]) == (False, "other", [])
    assert main(["chat"]) == 1
    assert "no deployment in openclaw-run: start one with" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_options_lists_every_flag_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options"]) == 0
    listed = capsys.readouterr().out
    assert "--training.lora.rank (int, at least 1)" in listed
    assert "--serving.port (int, 0 to 65535)\n    0 takes a free port; `status` names it.\n" in listed


def test_version_names_from_either_form() -> None:
    assert [version_name(header) for header in ("0", "12", "policy-v3", "base")] == [
        "base", "policy-v12", "policy-v3", "base",
    ]  # fmt: skip


def test_what_cannot_be_done_together_or_at_all_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "--json and --watch" in refused(capsys, "status", "--json", "--watch")
    assert "No such file" in refused(capsys, "options", "--update", "none.md")
    page = tmp_path / "page.md"
    page.write_text("no markers here")
    assert "page.md" in refused(capsys, "options", "--update", str(page))
    occupied = tmp_path / "file"
    occupied.write_text("")
    assert main(["up", "--run-dir", str(occupied)]) == 2
    assert "cannot use run_dir" in capsys.readouterr().err


def test_who_has_a_policy_of_their_own_is_told_to_say_who_they_are() -> None:
    config = Config.model_validate({"policies": {"per": "user"}})
    tried = what_to_try("http://127.0.0.1:8000/v1", config)
    assert "openclaw-rl chat --user YOU\n" in tried
    assert "-H 'X-User-Id: YOU'" in tried
    assert "YOU" not in what_to_try("http://127.0.0.1:8000/v1", Config())


def test_chat_takes_a_key_that_is_trained_on() -> None:
    silent = ApiKey(name="silent", key=SecretStr("s"), train=False)
    heard = ApiKey(name="heard", key=SecretStr("h"))
    assert [_key(keys) for keys in ((), (silent,), (silent, heard))] == ["none", "s", "h"]
