"""A user's own loss: what it is given, what it may return, and that it is what the model is trained by."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.config import LossConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.extensions import load_attribute
from openclaw_rl.training.custom_loss import CustomLoss
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import Method
from tests.training.support import logprobs_of, make_sample, mixed_samples, tiny_trainer, with_logprobs
from tests.training.test_reconstructed import reconstructed
from tests.training.test_reference import TOLERANCE, batch_of_everything, difference, gradients_of, trainer_of

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "custom_loss" / "clipped_with_kl.py"


def written(folder: Path, body: str, parameters: str = "", *, head: str = "a, b, c, d, config") -> str:
    """The path of a function with this body."""
    file = folder / "mine.py"
    signature = ", ".join(part for part in (head, parameters) if part)
    file.write_text(f"import torch\n\nseen = []\n\n\ndef compute_loss({signature}):\n    {body}\n")
    return f"{file}:compute_loss"


def trainer_with(path: str, loss: dict[str, Any] | None = None, method: Method = Method.BINARY_RL) -> Trainer:
    return trainer_of(loss or {}, method=method, custom_loss_function_path=path)


@pytest.mark.parametrize("reduction", ["tokens", "samples"])
def test_the_example_is_the_built_in_loss_that_it_spells_out(reduction: str) -> None:
    """The same formula in the user's hands gives the same loss and the same gradient, over several forward passes."""
    loss = {"reduction": reduction, "kl_coef": 0.3}
    ours = trainer_of({**loss, "kl": "k3"}, method=Method.BINARY_RL)
    theirs = trainer_with(f"{EXAMPLE}:compute_loss", loss)
    samples = batch_of_everything(ours)
    expected, found = ours.step(samples).metrics, theirs.step(samples).metrics
    assert found["loss"] == pytest.approx(expected["loss"], abs=TOLERANCE)
    assert difference(gradients_of(theirs.model), gradients_of(ours.model)) < TOLERANCE


def test_the_example_trains() -> None:
    """What was rewarded becomes likelier, what was not less likely."""
    trainer = tiny_trainer(shaken=True, method=Method.BINARY_RL, custom_loss_function_path=f"{EXAMPLE}:compute_loss")
    good, bad = make_sample(trainer, 0, reward=1.0), make_sample(trainer, 1, reward=-1.0)
    before = [float(logprobs_of(trainer, one).sum()) for one in (good, bad)]
    assert trainer.step([good, bad]).refused is None
    after = [float(logprobs_of(trainer, one).sum()) for one in (good, bad)]
    assert after[0] > before[0] + 0.01
    assert after[1] < before[1] - 0.01


def test_a_scalar_is_the_loss_as_it_is(tmp_path: Path) -> None:
    """`-Σ A·log π`, averaged by nobody: its gradient is that of the mean of the terms, times their number."""
    one = trainer_with(written(tmp_path, "return -(a * d).sum()"))
    samples = batch_of_everything(one)
    metrics = one.step(samples).metrics
    total = gradients_of(one.model)
    (tmp_path / "other").mkdir()
    mean = trainer_with(written(tmp_path / "other", "return -a * d"), {"reduction": "tokens"})
    averaged = mean.step(samples).metrics
    count = metrics["effective_tokens"]
    scaled = {name: gradient * count for name, gradient in gradients_of(mean.model).items()}
    assert difference(total, scaled) < TOLERANCE
    assert metrics["loss"] == pytest.approx(averaged["loss"] * count, rel=1e-4)


def test_the_names_of_the_earlier_guide_work(tmp_path: Path) -> None:
    head = "policy_logits, reference_logits, rewards, advantages, config"
    body = "return -(torch.exp(policy_logits - reference_logits) * advantages).mean() + config.clip_range"
    outcome = trainer_with(written(tmp_path, body, head=head)).step(batch_of_everything(tiny_trainer(shaken=True)))
    assert outcome.refused is None


def test_it_is_given_what_it_names_and_null_is_not_zero(tmp_path: Path) -> None:
    """Combine: rewards and teacher only where they are; the advantage is the sum; nothing without a signal."""
    names = "old_logprobs, mask, *, teacher_logprobs, loss_inputs"
    body = "seen.append((a, b, c, d, old_logprobs, mask, teacher_logprobs, loss_inputs)); return -a * d"
    path = written(tmp_path, body, names)
    loss = {"opd_top_k": 0, "baseline": "none", "w_opd": 0.5}
    trainer = tiny_trainer(loss, shaken=True, custom_loss_function_path=path)
    samples = mixed_samples(trainer)
    trainer.step(samples)
    made_up, real = load_attribute(path.replace("compute_loss", "seen"), option="seen")
    assert made_up[0].shape == (4,)
    policy, _, rewards, advantages, old, mask, teacher, inputs = real
    lengths = [len(s.tokens.response_ids) for s in samples]
    assert policy.shape == (sum(lengths[:5]),)  # the last sample has a retry only
    assert sorted(set(inputs.owner.tolist())) == [0, 1, 2, 3, 4]
    assert bool(mask.all())
    rewarded_only = inputs.owner == 0
    assert set(rewards[rewarded_only].tolist()) == {1.0}
    assert bool(teacher[rewarded_only].isnan().all())
    hinted_only = inputs.owner == 2
    assert bool(rewards[hinted_only].isnan().all())
    gap = (teacher - policy.detach())[hinted_only].clamp(-1.0, 1.0)
    torch.testing.assert_close(advantages[hinted_only], 0.5 * gap)
    assert inputs.reward_mask.tolist() == (~rewards.isnan()).tolist()
    assert inputs.hint_mask.tolist() == (~teacher.isnan()).tolist()
    assert math.isclose(float(inputs.weights.sum()), 1.0, rel_tol=1e-5)
    torch.testing.assert_close(policy.detach(), old, atol=1e-4, rtol=0)


def test_a_nan_of_its_making_is_refused_like_any_other(tmp_path: Path) -> None:
    trainer = trainer_with(written(tmp_path, "return a * (d / 0 if len(a) > 4 else d)"))
    outcome = trainer.step(batch_of_everything(trainer))
    assert outcome.refused == "loss_not_finite"


@pytest.mark.parametrize(
    ("parameters", "head", "body", "said"),
    [
        ("old_logprob", "a, b, c, d, config", "return a", "no value for its parameter old_logprob"),
        ("old_logprob=None", "a, b, c, d, config", "return a", "no value for its parameter old_logprob=None"),
        ("**rest", "a, b, c, d, config", "return a", "no value for its parameter **rest"),
        ("", "a, b, c", "return a", "takes policy_logprobs, reference_logprobs, rewards, advantages, config"),
        ("", "a, b, c, d, *, config", "return a", "in this order"),
        ("", "a, b, c, d, config", "return 1.0", "returned float"),
        ("", "a, b, c, d, config", "return a[:2]", "returned (2,)"),
        ("", "a, b, c, d, config", "return d.sum()", "does not depend on policy_logprobs"),
        ("", "a, b, c, d, config", "return b.requires_grad_().sum()", "does not depend on policy_logprobs"),
    ],
)
def test_what_cannot_work_is_an_error_at_start_up(
    tmp_path: Path, parameters: str, head: str, body: str, said: str
) -> None:
    path = written(tmp_path, body, parameters, head=head)
    with pytest.raises(ConfigError, match=r"training\.custom_loss_function_path") as caught:
        trainer_with(path)
    assert said in str(caught.value)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="is no function"):
        trainer_with("math:pi")


def test_an_error_of_its_own_is_one_sentence_at_start_up(tmp_path: Path) -> None:
    """Not a traceback of a process that is started again and again: a kind, a place and the error's own words."""
    with pytest.raises(ConfigError, match=r"function_path: .* ZeroDivisionError \(mine\.py:7\): division"):
        trainer_with(written(tmp_path, "return a * (1 / 0)"))
    (tmp_path / "broken.py").write_text("import no_such_module_of_theirs\n")
    with pytest.raises(ConfigError, match=r"ModuleNotFoundError \(broken\.py:1\): No module named"):
        trainer_with(f"{tmp_path / 'broken.py'}:compute_loss")
    with pytest.raises(ConfigError, match="custom_loss_function_path: no signature found"):
        CustomLoss(dict.update, LossConfig())


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return a * (1 if len(a) == 4 else 1 / 0)", "custom_loss_raised_ZeroDivisionError"),
        ("return a if len(a) == 4 else a[:2]", "custom_loss_unusable"),
        ("return a if len(a) == 4 else a.detach()", "custom_loss_unusable"),
        ("return a.sum() * (1 if len(a) == 4 else 1 + 1j)", "custom_loss_raised_RuntimeError"),
        ("if len(a) > 4: raise PermissionError(13, 'not yours')\n    return a", "custom_loss_raised_PermissionError"),
    ],
)
def test_what_it_raises_in_a_step_costs_that_step_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: str, reason: str, epochs: int
) -> None:
    trainer = trainer_of({"opd_top_k": 0}, custom_loss_function_path=written(tmp_path, body), epochs_per_batch=epochs)
    samples, before = batch_of_everything(trainer), trainer.state()
    outcome = trainer.step(samples)
    assert (outcome.refused, outcome.weights_changed) == (reason, False)
    assert "training.custom_loss_function_path raised " in caplog.text
    after = trainer.state()
    assert (after.step, after.averages) == (before.step, before.averages)
    assert all(torch.equal(before.weights[name], tensor) for name, tensor in after.weights.items())
    assert torch.equal(before.rng, after.rng)


@pytest.mark.parametrize("kind", ["MemoryError()", "torch.OutOfMemoryError()", "OSError(28, 'no space')"])
def test_what_is_not_its_fault_is_passed_on(tmp_path: Path, kind: str) -> None:
    body = f"\n    if len(a) > 4:\n        raise {kind}\n    return a"
    with pytest.raises((MemoryError, torch.OutOfMemoryError, OSError)):
        trainer_with(written(tmp_path, body)).step(batch_of_everything(tiny_trainer(shaken=True)))


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_reconstructed_sample_is_old_by_the_policy_before_the_step(epochs: int) -> None:
    """The example on samples that no engine drew does what the built-in loss does, in later passes too."""
    loss, values = {"opd_top_k": 0, "kl_coef": 0.3}, {"method": Method.OPD, "epochs_per_batch": epochs}
    ours = trainer_of({**loss, "kl": "k3"}, **values)
    theirs = trainer_of(loss, custom_loss_function_path=f"{EXAMPLE}:compute_loss", **values)
    samples = [reconstructed(make_sample(ours, number, reward=None, hint="be kind")) for number in range(3)]
    expected, found = ours.step(samples), theirs.step(samples)
    assert (expected.refused, found.refused) == (None, None)
    assert found.metrics["loss"] == pytest.approx(expected.metrics["loss"], abs=TOLERANCE)
    assert difference(gradients_of(theirs.model), gradients_of(ours.model)) < 10 * TOLERANCE


def test_what_is_old_stays_so_in_later_passes(tmp_path: Path) -> None:
    """The engine's record of a sample drawn here; of a reconstructed one, the policy before the first pass."""
    body = "seen.append((a.detach().clone(), old_logprobs.clone(), owner.clone())); return -a * d"
    path = written(tmp_path, body, "old_logprobs, owner")
    trainer = trainer_of({"opd_top_k": 0}, custom_loss_function_path=path, epochs_per_batch=3, lr=5e-2)
    drawn = with_logprobs(make_sample(trainer, 0, reward=None, hint="hm"), [-0.5, -1.0, -1.5, -2.0])
    told = reconstructed(make_sample(trainer, 1, reward=None, hint="be kind"))
    before = logprobs_of(trainer, told)
    trainer.step([drawn, told])
    _made_up, *passes = load_attribute(path.replace("compute_loss", "seen"), option="seen")
    assert len(passes) == 3
    for _, old, owner in passes:
        assert old[owner == 0].tolist() == pytest.approx([-0.5, -1.0, -1.5, -2.0])
        torch.testing.assert_close(old[owner == 1], before, atol=1e-4, rtol=0)
    now, _, owner = passes[-1]
    assert float((now[owner == 1] - before).abs().max()) > 0.01


def test_a_file_that_switches_gradients_off_has_them_all_the_same(tmp_path: Path) -> None:
    with torch.set_grad_enabled(False):
        assert callable(CustomLoss.load(written(tmp_path, "return -a.sum()"), LossConfig()).given)
