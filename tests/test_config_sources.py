"""Where the configuration comes from, who wins, and what people are told when they mistype."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.config import ApiKey, Config, JudgeConfig, LoraConfig, ModelConfig, ServingConfig, TrainingConfig
from openclaw_rl.config_render import HIDDEN, TABLE_BEGIN, plain, to_toml, type_name, with_tables, write_private_json
from openclaw_rl.config_sources import (
    FLAG_ALIASES,
    ConfigError,
    from_environment,
    from_flags,
    from_toml,
    from_tree,
    load,
    load_json,
    options,
    resolve,
)

ROOT = Path(__file__).parents[1]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text("run_dir = 'here'\n[training]\nlr = 0.5\nseed = 1\n[training.lora]\nrank = 3\n")
    return path


def error_of(settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(settings())
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- precedence --------------------------------------------------------------------------------------------


def test_defaults_then_recipe_then_environment_then_flags(recipe: Path) -> None:
    environ = {"OPENCLAW_RL_TRAINING__LR": "0.25", "OPENCLAW_RL_TRAINING__LORA__RANK": "5"}
    resolved = load(recipe, environ, [("--training.lr", "0.125")])
    training = resolved.config.training
    assert (training.lr, training.lora.rank, training.seed, training.adam_beta1) == (0.125, 5, 1, 0.9)
    assert resolved.config.run_dir == Path("here")
    assert resolved.origins == {
        "run_dir": str(recipe),
        "training.lr": "--training.lr",
        "training.seed": str(recipe),
        "training.lora.rank": "OPENCLAW_RL_TRAINING__LORA__RANK",
    }


def test_nothing_given_is_the_defaults() -> None:
    assert load(None, {"PATH": "/bin"}).config == Config()


def test_a_variable_of_ours_wins_over_its_other_name() -> None:
    assert load(None, {"PRM_M": "5"}).config.judge.votes == 5
    assert load(None, {"PRM_M": "5", "OPENCLAW_RL_JUDGE__VOTES": "7"}).config.judge.votes == 7
    assert load(None, {"OPENCLAW_RL_LOG_LEVEL": "DEBUG"}).config == Config()


def test_the_last_flag_wins() -> None:
    flags = [("--lr", "1e-4"), ("--set", "training.lr=2e-4"), ("--training.lora.rank", "2"), ("--lora-rank", "4")]
    config = load(None, {}, flags).config
    assert (config.training.lr, config.training.lora.rank) == (2e-4, 4)


FAMILIAR_FLAGS = [
    ("--model-path", "/models/x", lambda c: c.model.path, "/models/x"),
    ("--port", "0", lambda c: c.serving.port, 0),
    ("--host", "localhost", lambda c: c.serving.host, "localhost"),
    ("--custom-loss-function-path", "a.py:f", lambda c: c.training.custom_loss_function_path, "a.py:f"),
    ("--lr", "1e-6", lambda c: c.training.lr, 1e-6),
    ("--lr-schedule", "cosine", lambda c: c.training.schedule, "cosine"),
    ("--warmup-steps", "5", lambda c: c.training.warmup_steps, 5),
    ("--schedule-steps", "50", lambda c: c.training.schedule_steps, 50),
    ("--min-lr-share", "0.5", lambda c: c.training.min_lr_share, 0.5),
    ("--save-interval", "10", lambda c: c.training.save_interval, 10),
    ("--resume-from-checkpoint", "a/step-000012", lambda c: c.training.resume_from_checkpoint, "a/step-000012"),
    ("--weight-decay", "0.01", lambda c: c.training.weight_decay, 0.01),
    ("--adam-beta1", "0.8", lambda c: c.training.adam_beta1, 0.8),
    ("--adam-beta2", "0.999", lambda c: c.training.adam_beta2, 0.999),
    ("--lora-rank", "64", lambda c: c.training.lora.rank, 64),
    ("--lora-alpha", "128", lambda c: c.training.lora.alpha, 128.0),
    ("--lora-dropout", "0.05", lambda c: c.training.lora.dropout, 0.05),
    ("--lora-target-modules", "q_proj, v_proj", lambda c: c.training.lora.target_modules, ("q_proj", "v_proj")),
    ("--rollout-batch-size", "64", lambda c: c.rollout.batch_size, 64),
    ("--majority-vote-n", "5", lambda c: c.judge.votes, 5),
    ("--majority-vote-threshold", "0.6", lambda c: c.judge.vote_threshold, 0.6),
    ("--num-judge-workers", "4", lambda c: c.judge.workers, 4),
    ("--custom-rm-path", "", lambda c: c.judge.custom_rm_path, None),
    ("--run-dir", "a", lambda c: c.run_dir, Path("a")),
    ("--save-dir", "b", lambda c: c.run_dir, Path("b")),
    ("--method", "opd", lambda c: c.training.method, "opd"),
    ("--backend", "embedded", lambda c: c.engine.kind, "embedded"),
    ("--replicas", "2", lambda c: c.engine.replicas, 2),
    ("--use-lora", "false", lambda c: c.training.use_lora, False),
    ("--offload-optimizer-state", "true", lambda c: c.training.offload_optimizer_state, True),
    ("--rollout-function-path", "a.py:f", lambda c: c.rollout.rollout_function_path, "a.py:f"),
    ("--custom-generate-function-path", "a.py:g", lambda c: c.rollout.custom_generate_function_path, "a.py:g"),
    ("--num-rollouts-per-prompt", "8", lambda c: c.rollout.rollouts_per_task, 8),
]


TASKS = ("--rollout.tasks", "tasks.jsonl")
NEEDED_BESIDE: dict[str, list[tuple[str, str]]] = {
    "--custom-generate-function-path": [TASKS],
    "--num-rollouts-per-prompt": [TASKS, ("--custom-generate-function-path", "a.py:g")],
    "--custom-loss-function-path": [("--training.loss.opd_top_k", "0")],
    "--lr-schedule": [("--schedule-steps", "9")],
    "--schedule-steps": [("--lr-schedule", "linear")],
    "--min-lr-share": [("--lr-schedule", "linear"), ("--schedule-steps", "9")],
}


@pytest.mark.parametrize(("flag", "text", "look", "value"), FAMILIAR_FLAGS)
def test_familiar_flags(flag: str, text: str, look: Any, value: Any) -> None:
    assert look(load(None, {}, [(flag, text), *NEEDED_BESIDE.get(flag, [])]).config) == value


def test_every_familiar_flag_names_a_key_and_is_tested() -> None:
    assert set(FLAG_ALIASES.values()) <= {option.key for option in options()}
    assert set(FLAG_ALIASES) == {flag for flag, *_ in FAMILIAR_FLAGS}


def test_the_type_of_every_option_is_told_in_words() -> None:
    assert {option.key for option in options() if "Annotated" in type_name(option)} == set()
    (steps,) = [option for option in options() if option.key == "training.schedule_steps"]
    assert type_name(steps) == "int (or unset)"


def test_every_option_is_described() -> None:
    assert [option.key for option in options() if not option.description] == []


def test_every_leaf_has_a_variable_and_a_flag_of_its_own() -> None:
    everything = options()
    assert len({option.variable for option in everything}) == len(everything)
    for option in everything:
        assert from_flags([(option.flag, "x")])[0].key == option.key
        assert from_environment({option.variable: ""})[0].key == option.key


def test_lists_optional_values_and_keys_from_text() -> None:
    keys = '[{"name": "anna", "key": "long", "train": false}]'
    config = load(
        None,
        {"OPENCLAW_RL_SERVING__API_KEYS": keys, "OPENCLAW_RL_JUDGE__BASE_URL": ""},
        [
            ("--lora-target-modules", '["q_proj"]'),
            ("--rollout.accepted_retry", "yes"),
            ("--set", "training.loss.w_retry=1"),
        ],
    ).config
    assert config.serving.api_keys[0].key.get_secret_value() == "long"
    assert config.serving.api_keys[0].train is False
    assert config.judge.base_url is None
    assert config.training.lora.target_modules == ("q_proj",)
    assert config.rollout.accepted_retry is True


@pytest.mark.parametrize(
    ("engine", "chosen", "niceness"),
    [
        ({}, None, 10),
        ({"kind": "scripted", "script": "answers.json"}, None, 10),
        ({"kind": "openai", "urls": ["https://h/v1"], "upstream_model": "big"}, None, 10),
        ({"kind": "vllm"}, None, 0),
        ({"kind": "sglang"}, None, 0),
        ({}, 0, 0),
        ({"kind": "vllm"}, 7, 7),
    ],
)
def test_a_trainer_beside_an_engine_that_keeps_all_cores_busy_does_not_stand_back(
    engine: dict[str, Any], chosen: int | None, niceness: int
) -> None:
    config = Config.model_validate({"engine": engine, "training": {"niceness": chosen}})
    assert config.trainer_niceness == niceness


# --- errors ------------------------------------------------------------------------------------------------


def test_an_unknown_key_of_a_recipe_is_named_with_its_file_and_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("[training.lora]\nrnak = 3\n")
    message = error_of(lambda: from_toml(path))
    assert message == f"unknown option training.lora.rnak ({path}): the nearest valid name is training.lora.rank"


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("lr = 1", "training.lr"),
        ("rollout_batch_size = 1", "rollout.batch_size"),
        ("[trainng]\nlr = 1", "training"),
        ("[training]\nlearning_rate = 1", "training.lr"),
        ("[training.lora]\nr = 1", "training.lora.rank"),
    ],
)
def test_the_nearest_name(tmp_path: Path, text: str, nearest: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    assert error_of(lambda: from_toml(path)).endswith(f"the nearest valid name is {nearest}")


def test_a_name_of_the_system_before_is_answered_with_ours(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text("[ppo]\nkl_coef = 0.1\n")
    assert "unknown option ppo.kl_coef" in error_of(lambda: from_toml(path))
    assert "here it is training.loss.kl_coef" in error_of(lambda: from_toml(path))


def test_an_unknown_variable_is_named_with_the_nearest() -> None:
    message = error_of(lambda: from_environment({"OPENCLAW_RL_TRAINING_LR": "1"}))
    assert "OPENCLAW_RL_TRAINING_LR (environment)" in message
    assert message.endswith("the nearest valid name is OPENCLAW_RL_TRAINING__LR")


def test_set_of_an_unknown_key_or_without_a_value() -> None:
    assert error_of(lambda: from_flags([("--set", "training.lrr=1")])).endswith("is training.lr")
    assert "write --set key=value" in error_of(lambda: from_flags([("--set", "training.lr")]))


@pytest.mark.parametrize("backend", ["tinker"])
def test_a_backend_that_is_not_there_names_those_that_are(backend: str) -> None:
    message = error_of(lambda: from_flags([("--backend", backend)]))
    have = "embedded, vllm, sglang, openai and scripted"
    assert message == f"--backend {backend}: not available yet; this version has {have}"


def test_a_value_out_of_bounds_is_named_with_its_source() -> None:
    message = error_of(lambda: from_flags([("--port", "70000")]))
    assert message.startswith("serving.port = '70000' (--port): ")
    assert "65535" in message


def test_a_section_that_is_a_value_and_a_file_that_is_no_toml(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("training = 3")
    assert "training (" in error_of(lambda: from_toml(path))
    path.write_text("training = ")
    assert "is not valid TOML" in error_of(lambda: from_toml(path))
    assert "cannot read the recipe" in error_of(lambda: from_toml(tmp_path / "none.toml"))


def test_combinations_that_cannot_work_say_why() -> None:
    assert "is not loopback" in error_of(lambda: from_flags([("--host", "0.0.0.0")]))
    assert "rollout.accepted_retry" in error_of(lambda: from_flags([("--set", "training.loss.w_retry=1")]))


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (["engine.host=0.0.0.0"], "engine.host 0.0.0.0 is not loopback"),
        (["engine.script=answers.json"], "engine.script is only for engine.kind = scripted"),
        (["engine.kind=scripted"], "engine.kind = scripted needs engine.script"),
        (["model.served_name=base"], "model.served_name 'base' means something else"),
        (["model.served_name=policy-v3"], "model.served_name 'policy-v3' means something else"),
        (["judge.min_valid_votes=4"], "judge.min_valid_votes is above judge.votes"),
        (["judge.base_url=http://x.test/v1"], "judge.base_url is only for judge.kind = llm, and it is classifier"),
        (["judge.kind=verdict_logits", "judge.api_key_env=KEY"], "judge.api_key_env is only for judge.kind = llm"),
        (["judge.turn_timeout_s=120"], "judge.turn_timeout_s = 120 must be below judge.lease_s = 120"),
        (["judge.kind=llm", "judge.base_url=localhost:9000"], "must begin with http:// or https://"),
        (["judge.kind=custom"], "judge.kind = custom needs judge.custom_rm_path"),
        (["judge.custom_rm_path=a:b"], "judge.custom_rm_path is only for judge.kind = custom, and it is classifier"),
        (["judge.kind=reward_model"], "judge.kind = reward_model needs judge.model"),
        (["judge.score_range=0,1"], "judge.score_range is only for judge.kind = custom or reward_model"),
        (["judge.kind=custom", "judge.custom_rm_path=a:b", "judge.score_range=1,0"], "the lower one first"),
        (["judge.positive_class=1"], "judge.positive_class is only for judge.kind = reward_model"),
        (["rollout.accepted_retry=true"], "rollout.accepted_retry needs training.loss.w_retry above 0"),
        (["training.adam_beta1=1"], "training.adam_beta1 = '1' (--set): input should be less than 1"),
        (["training.method=opd", "training.loss.w_opd=0"], "training.method = opd learns nothing"),
        (["training.method=binary_rl", "training.loss.w_rl=0"], "training.method = binary_rl learns nothing"),
        (["training.loss.w_rl=0", "training.loss.w_opd=0"], "training.method = combine learns nothing"),
        (["training.loss.kind=cispo", "training.loss.dual_clip=3"], "dual_clip is only for kind = ppo"),
        (["training.loss.dual_clip=1"], "training.loss.dual_clip"),
        (["training.loss.clip_low=1.5"], "training.loss.clip_low"),
        (
            ["training.loss.kind=importance_sampling", "training.loss.opd_top_k=0", "training.loss.clip_high=0.3"],
            "training.loss.clip_high does nothing",
        ),
        (["training.loss.kind=gspo"], "gspo needs opd_top_k = 0"),
        (["training.loss.icepop_low=0.5"], "make a band"),
        (["training.loss.icepop_low=2", "training.loss.icepop_high=5"], "training.loss.icepop_low"),
        (
            ["training.loss.icepop_low=0.5", "training.loss.icepop_high=2", "training.loss.tis_cap=2"],
            "tis_cap never acts",
        ),
        (["training.loss.kl=k3", "training.loss.kl_coef=0"], "weighs nothing"),
        (["training.loss.retry=forward_kl"], "weighs nothing"),
        (["training.loss.normalise=group"], "needs baseline = group or step"),
        (["training.loss.baseline=none", "training.loss.baseline_decay=0.5"], "does nothing with baseline = none"),
        (["training.method=opd", "training.loss.normalise=batch"], "method = opd has none"),
        (["training.loss.normalise=batch", "rollout.batch_size=1"], "rollout.batch_size of 2"),
        (["training.custom_loss_function_path=a.py:f"], "set training.loss.opd_top_k = 0"),
        (
            ["training.custom_loss_function_path=a.py:f", "training.method=binary_rl", "training.lora.dropout=0.1"],
            "needs training.lora.dropout = 0",
        ),
        (
            ["training.custom_loss_function_path=a.py:f", "training.method=binary_rl", "training.loss.kind=cispo"],
            "training.loss.kind does nothing",
        ),
        (['serving.api_keys=[{"name": "a", "key": ""}]'], "serving.api_keys.0.key"),
        (['serving.api_keys=[{"name": "a", "key": "1"}, {"name": "a", "key": "2"}]'], "have one name"),
        (['serving.api_keys=[{"name": "a", "key": "1"}, {"name": "b", "key": "1"}]'], "have one key"),
    ],
)
def test_what_could_not_be_honoured_is_refused(chosen: list[str], said: str) -> None:
    assert said in error_of(lambda: from_flags([("--set", setting) for setting in chosen]))


def test_a_pair_of_numbers_from_text() -> None:
    chosen = ["judge.kind=custom", "judge.custom_rm_path=a:b", "judge.score_range=0, 10"]
    config = resolve(from_flags([("--set", setting) for setting in chosen])).config
    assert config.judge.score_range == (0.0, 10.0)


def test_one_signal_of_two_is_enough_to_learn_from() -> None:
    config = resolve(from_flags([("--set", "training.loss.w_opd=0")])).config
    assert (config.training.loss.w_rl, config.training.loss.w_opd) == (1.0, 0.0)


def test_a_secret_is_never_repeated_in_an_error() -> None:
    wrong = '[{"name": "anna", "kye": "swordfish"}]'
    message = error_of(lambda: from_environment({"OPENCLAW_RL_SERVING__API_KEYS": wrong}))
    assert "swordfish" not in message
    assert "the nearest valid name is serving.api_keys.0.key" in message
    for text in ('["swordfish"]', '[{"name": "anna", "key": ["swordfish"]}]', "swordfish", "[swordfish"):
        message = error_of(lambda text=text: from_environment({"OPENCLAW_RL_SERVING__API_KEYS": text}))
        assert "swordfish" not in message


# --- rendering ---------------------------------------------------------------------------------------------


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    path=text,
    base_url=st.none() | text,
    lr=st.floats(1e-12, 1e6),
    seed=st.integers(-(2**40), 2**40),
    modules=st.lists(text, max_size=3),
    alpha=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
)
def test_the_printed_tree_reads_back(
    path: str, base_url: str | None, lr: float, seed: int, modules: list[str], alpha: float
) -> None:
    config = Config(
        model=ModelConfig(path=path),
        judge=JudgeConfig(kind="llm", base_url=None if base_url is None else f"http://{base_url}"),
        training=TrainingConfig(lr=lr, seed=seed, lora=LoraConfig(target_modules=tuple(modules), alpha=alpha)),
    )
    printed = to_toml(config, {"training.lr": "--lr"})
    assert resolve(from_tree(tomllib.loads(printed), "printed")).config == config
    assert "  # --lr\n" in printed


def test_secrets_are_hidden_in_print_and_kept_for_the_loops(tmp_path: Path) -> None:
    config = Config(serving=ServingConfig(api_keys=(ApiKey(name="anna", key="swordfish"),)))  # type: ignore[arg-type]
    printed = to_toml(config)
    assert "swordfish" not in printed
    hidden = resolve(from_tree(tomllib.loads(printed), "printed")).config
    assert hidden.serving.api_keys[0].key.get_secret_value() == HIDDEN
    write_private_json(config, tmp_path / "config.json")
    assert load_json(tmp_path / "config.json") == config
    assert plain(config, reveal=True) != plain(config, reveal=False)


def test_the_documentation_has_the_tables_of_the_tree() -> None:
    page = (ROOT / "docs" / "01-configuration.md").read_text(encoding="utf-8")
    assert with_tables(page) == page, "run make docs"
    assert all(f"`{option.key}`" in page.partition(TABLE_BEGIN)[2] for option in options())


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_resolves_and_runs_the_method_it_is_named_for(recipe: Path) -> None:
    config = load(recipe, {}).config
    assert config.training.method.value == recipe.stem


@pytest.mark.parametrize("module", ["config", "config_sources", "config_render", "cli", "supervision.supervisor"])
def test_no_torch_is_loaded(module: str) -> None:
    code = f"import openclaw_rl.{module}, sys; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


UPSTREAM = {"--engine.kind": "openai", "--engine.urls": "https://h/v1", "--engine.upstream_model": "big"}


def test_an_upstream_is_configured_by_three_words_and_its_key_is_never_shown() -> None:
    environ = {"OPENCLAW_RL_ENGINE__API_KEY": "sk-secret"}
    config = resolve([*from_environment(environ), *from_flags(UPSTREAM.items())]).config
    assert (config.engine.kind, config.engine.urls, config.engine.upstream_model) == (
        "openai",
        ("https://h/v1",),
        "big",
    )
    assert config.engine.api_key is not None
    assert config.engine.api_key.get_secret_value() == "sk-secret"
    assert "sk-secret" not in to_toml(config)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"--engine.urls": ""}, "needs engine.urls"),
        ({"--engine.upstream_model": ""}, "needs engine.upstream_model"),
        ({"--engine.urls": "h:80/v1"}, "is no http:// or https:// URL"),
        ({"--engine.urls": "https://sk-secret@h/v1"}, "the key goes to engine.api_key"),
        ({"--engine.urls": "https://h/v1,https://h/v1/"}, "names one address twice"),
        ({"--engine.kind": "embedded"}, "only for engine.kind = openai"),
    ],
)
def test_an_upstream_that_cannot_be_asked_is_refused(changed: dict[str, str], words: str) -> None:
    message = error_of(lambda: from_flags({**UPSTREAM, **changed}.items()))
    assert words in message
    assert "sk-secret" not in message
