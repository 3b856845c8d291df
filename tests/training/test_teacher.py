from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from openclaw_rl.config import Config, GateConfig, TeacherConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import load_tokenizer
from openclaw_rl.policy_files import UnreadablePolicy
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.testing.tiny_model import build_tiny_model
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.checkpoint import load_checkpoint, save_checkpoint
from openclaw_rl.training.scorer import Mode, Scorer
from openclaw_rl.training.teacher import (
    AverageTeacher,
    BaseTeacher,
    FrozenTeacher,
    LiveTeacher,
    Teacher,
    TeacherOf,
    vocabulary_difference,
)
from openclaw_rl.training.teacher_models import ModelTeacher
from openclaw_rl.training.teacher_setup import frozen_version, teacher_of, teacher_prompt
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import Method, Sample
from tests.training.support import (
    SAME,
    VOCABULARY,
    make_sample,
    shake,
    tiny_config,
    tiny_model,
    tiny_trainer,
)
from tests.training.support import teacher_prompt as tiny_prompt
from tests.unreadable import FAILING, failing


def trainer_with(teacher: TeacherOf, **values: Any) -> Trainer:
    return Trainer(
        config=tiny_config({"baseline": "none"}, **values),
        model=tiny_model(),
        base_path="tiny",
        teacher_prompt=tiny_prompt,
        teacher=teacher,
    )


def other_model(hidden: int = 48) -> Any:
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def read(teacher: Teacher, sequence: TokenSequence) -> torch.Tensor:
    """The log-probabilities [R] that a teacher gives to a response at temperature 1."""
    length = len(sequence.response_ids)
    hidden = teacher.read([sequence], length=length, max_tokens=64, progress=lambda: None)
    logprobs = teacher.log_distribution(hidden, torch.ones(length))
    return logprobs.gather(-1, torch.tensor(sequence.response_ids).unsqueeze(-1)).squeeze(-1)


def hinted(sample: Sample) -> TokenSequence:
    return TokenSequence(prompt_ids=tiny_prompt(sample), response_ids=sample.tokens.response_ids, start=0)


@pytest.mark.parametrize("response", [1, 7])
def test_the_live_teacher_without_a_hint_is_the_student_at_every_token(response: int) -> None:
    trainer = tiny_trainer(shaken=True)
    sample = make_sample(trainer, 1, hint=SAME, response=response)
    torch.testing.assert_close(
        read(trainer.teacher, hinted(sample)), torch.tensor(sample.logprobs), atol=1e-5, rtol=0
    )


def test_the_base_is_the_model_without_its_adapter() -> None:
    trainer = trainer_with(BaseTeacher)
    sample = make_sample(trainer, 1, hint="hm")
    before = read(trainer.teacher, hinted(sample))
    shake(trainer)
    torch.testing.assert_close(read(trainer.teacher, hinted(sample)), before)
    assert trainer.teacher.name(7) == "base"
    own = trainer.scorer.score(hinted(sample), Mode.TEACHER).logprobs
    assert float((own - before).abs().max()) > 1e-3


def test_a_frozen_version_stays_and_the_policy_is_put_back_bit_for_bit() -> None:
    frozen = tiny_trainer(shaken=True)
    weights = frozen.state().weights
    trainer = trainer_with(lambda scorer: FrozenTeacher(scorer, weights=weights, version=3))
    sample = make_sample(trainer, 1, hint="hm")
    expected = frozen.scorer.score(hinted(sample), Mode.TEACHER).logprobs
    shake(trainer, scale=0.4)
    own = trainer.state().weights
    torch.testing.assert_close(read(trainer.teacher, hinted(sample)), expected, atol=1e-6, rtol=0)
    assert all(torch.equal(own[name], tensor) for name, tensor in trainer.state().weights.items())
    assert (trainer.teacher.name(9), trainer.teacher.state()) == ("policy-v3", None)


def test_the_policy_is_put_back_also_when_reading_fails() -> None:
    weights = tiny_trainer(shaken=True).state().weights
    trainer = trainer_with(lambda scorer: FrozenTeacher(scorer, weights=weights, version=3))
    own = trainer.state().weights
    beyond = TokenSequence(prompt_ids=(VOCABULARY + 5,), response_ids=(1,), start=0)
    with pytest.raises(IndexError):
        read(trainer.teacher, beyond)
    assert all(torch.equal(own[name], tensor) for name, tensor in trainer.state().weights.items())


def test_the_average_by_hand() -> None:
    trainer = trainer_with(lambda scorer: AverageTeacher(scorer, decay=0.75))
    start = trainer.state().weights
    shake(trainer)
    one = trainer.state().weights
    trainer.teacher.follow(one)
    average = trainer.teacher.state()
    assert average is not None
    for name, tensor in average.items():
        torch.testing.assert_close(tensor, 0.75 * start[name] + 0.25 * one[name])
    assert trainer.teacher.name(4) == "average-v4"


def test_a_step_moves_the_average_and_a_checkpoint_keeps_it(tmp_path: Path) -> None:
    def average(scorer: Scorer) -> Teacher:
        return AverageTeacher(scorer, decay=0.5)

    trainer = trainer_with(average)
    start = trainer.state().weights
    trainer.step([make_sample(trainer, 1, hint="hm")])
    kept = load_checkpoint(save_checkpoint(trainer, tmp_path))
    assert kept.teacher is not None
    for name, tensor in kept.teacher.items():
        torch.testing.assert_close(tensor, (start[name] + kept.weights[name]) / 2)
    resumed = trainer_with(average)
    resumed.restore(kept)
    assert_same(resumed.teacher.state(), kept.teacher)
    resumed.restore(dataclasses.replace(kept, teacher=None))  # the checkpoint of another kind of teacher
    assert_same(resumed.teacher.state(), kept.weights)


def assert_same(found: Any, expected: Any) -> None:
    assert found is not None
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_refused_step_leaves_the_average_where_it_was() -> None:
    trainer = trainer_with(lambda scorer: AverageTeacher(scorer, decay=0.5), gate=GateConfig(max_kl_to_base=1e-9))
    before = trainer.teacher.state()
    assert trainer.step([make_sample(trainer, 1, hint="hm")]).refused is not None
    assert_same(trainer.teacher.state(), before)


@pytest.mark.parametrize("top_k", [0, 4])
def test_another_model_of_another_width_can_teach(top_k: int) -> None:
    model = other_model()
    trainer = Trainer(
        config=tiny_config({"baseline": "none", "kl_coef": 0.0, "opd_top_k": top_k}, method=Method.OPD),
        model=tiny_model(),
        base_path="tiny",
        teacher_prompt=tiny_prompt,
        teacher=lambda _: ModelTeacher(model, name="big"),
    )
    sample = make_sample(trainer, 1, reward=None, hint="hm", response=3)
    with torch.no_grad():
        ids = torch.tensor([[*tiny_prompt(sample), *sample.tokens.response_ids]])
        plain = torch.log_softmax(model(ids).logits[0, -4:-1], -1)
    expected = plain.gather(-1, torch.tensor(sample.tokens.response_ids).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(read(trainer.teacher, hinted(sample)), expected, atol=1e-5, rtol=0)
    outcome = trainer.step([sample])
    assert outcome.refused is None
    assert abs(outcome.metrics["loss_opd" if top_k else "loss_policy"]) > 1e-3
    assert outcome.teacher == {
        "scored_by": "model:big",
        "hinted": {"t1": {"candidate": 0}},
        "excluded": {},
    }
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_another_models_context_bounds_the_hint() -> None:
    trainer = trainer_with(lambda _: ModelTeacher(other_model(), name="big"))
    assert trainer.usable.obstacle(make_sample(trainer, 1, reward=None, hint="hm", prompt=58, response=4)) is None
    assert (
        trainer.usable.obstacle(make_sample(trainer, 1, reward=None, hint="hm", prompt=59, response=4))
        == "hint_too_long"
    )


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"a": 0, "b": 1, "c": 2}, None),
        ({"a": 0, "b": 2, "c": 1}, "'b' is 2 there and 1 here"),
        ({"a": 0, "x": 1, "c": 2}, "it has no 'b'"),
        ({"a": 0, "b": 1}, "2 tokens, not 3; it has no 'c'"),
        ({"a": 0, "b": 1, "c": 2, "d": 3}, "4 tokens, not 3"),
    ],
)
def test_what_makes_two_vocabularies_two(other: dict[str, int], named: str | None) -> None:
    assert vocabulary_difference({"a": 0, "b": 1, "c": 2}, other) == named


# --- from the configuration --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model directory with SmolLM2's own tokenizer."""
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


def config_with(tmp_path: Path, **teacher: Any) -> Config:
    return Config(run_dir=tmp_path, training=tiny_config(teacher=TeacherConfig(**teacher)))


def test_each_kind_is_built(tmp_path: Path, tiny: Path) -> None:
    trainer = tiny_trainer(shaken=True)
    trainer.step_number = 2
    save_checkpoint(trainer, config_with(tmp_path).checkpoints_dir)
    tokenizer = load_tokenizer(tiny)
    kinds: list[tuple[dict[str, Any], type, str]] = [
        ({}, LiveTeacher, "policy-v5"),
        ({"kind": "frozen"}, BaseTeacher, "base"),
        ({"kind": "frozen", "version": 0}, BaseTeacher, "base"),
        ({"kind": "frozen", "version": 2}, FrozenTeacher, "policy-v2"),
        ({"kind": "average"}, AverageTeacher, "average-v5"),
    ]
    for values, kind, name in kinds:
        config = config_with(tmp_path, **values)
        teacher = teacher_of(config, tokenizer)(trainer.scorer)
        assert (type(teacher), teacher.name(5)) == (kind, name)
    assert frozen_version(TeacherConfig(kind="frozen", version=2)) == 2
    assert frozen_version(TeacherConfig(kind="frozen")) is None
    assert frozen_version(TeacherConfig()) is None


def test_a_version_that_is_not_there_is_named(tmp_path: Path, tiny: Path) -> None:
    config = config_with(tmp_path, kind="frozen", version=4)
    with pytest.raises(ConfigError, match=r"training\.teacher\.version = 4 .* there is none yet"):
        teacher_of(config, load_tokenizer(tiny))
    (config.checkpoints_dir / "step-000003").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"there are step-000003"):
        teacher_of(config, load_tokenizer(tiny))


def test_a_damaged_version_is_no_teacher(tmp_path: Path, tiny: Path) -> None:
    trainer = tiny_trainer()
    trainer.step_number = 1
    config = config_with(tmp_path, kind="frozen", version=1)
    path = save_checkpoint(trainer, config.checkpoints_dir)
    (path / "adapter" / "adapter_model.safetensors").write_bytes(b"x")
    with pytest.raises(ConfigError, match="cannot be read"):
        teacher_of(config, load_tokenizer(tiny))


@pytest.mark.skipif(not FAILING.exists(), reason="needs /proc/self/mem")
def test_a_version_that_cannot_be_read_for_now_is_no_error_of_the_configuration(tmp_path: Path, tiny: Path) -> None:
    """A ConfigError would end the deployment; the next start may find the disk well."""
    trainer = tiny_trainer()
    trainer.step_number = 1
    config = config_with(tmp_path, kind="frozen", version=1)
    path = save_checkpoint(trainer, config.checkpoints_dir)
    with failing(path / "adapter" / "adapter_model.safetensors"), pytest.raises(UnreadablePolicy):
        teacher_of(config, load_tokenizer(tiny))


def test_another_model_with_another_vocabulary_is_refused_by_name(tmp_path: Path, tiny: Path) -> None:
    config = config_with(tmp_path, kind="model", path=str(tiny))
    tokenizer = load_tokenizer(tiny)
    other = teacher_of(config, tokenizer)
    with pytest.raises(ConfigError, match="an output head of"):  # same tokenizer, but this policy is of 61 entries
        other(tiny_trainer().scorer)
    tokenizer.add_tokens(["brandnewtoken"])
    with pytest.raises(ConfigError, match=r"another vocabulary than the policy: .* it has no 'brandnewtoken'"):
        teacher_of(config, tokenizer)
    missing = config_with(tmp_path, kind="model", path=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"training\.teacher\.path = .*nowhere"):
        teacher_of(missing, tokenizer)


STRICT = (
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_placement_that_the_template_refuses_is_an_error_at_start_up(tiny: Path) -> None:
    tokenizer = load_tokenizer(tiny)
    tokenizer.chat_template = STRICT
    renderer = Renderer(tokenizer)
    teacher_prompt(renderer, TeacherConfig())
    with pytest.raises(ConfigError, match=r"hint_placement = system .*no system role"):
        teacher_prompt(renderer, TeacherConfig(hint_placement="system"))
