"""The benchmark of a training step: its samples, what its sides compute, and its figures."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from benchmarks.training_cases import Case, samples_of, with_old
from benchmarks.training_sides import Limit, Ours, Plain, Side, Task, dense_rows, old_logprobs
from benchmarks.training_trl import _one_row, _padded
from benchmarks.training_worker import Measured

from benchmarks import training
from openclaw_rl.testing.tiny_model import build_tiny_model
from openclaw_rl.types import Sample


def lengths(samples: list[Sample]) -> list[tuple[int, int]]:
    return [(len(s.tokens.prompt_ids), len(s.tokens.response_ids)) for s in samples]


def test_the_cases_are_as_large_as_they_say() -> None:
    assert lengths(samples_of(Case.EQUAL, 1000)) == [(128, 128)] * 16
    mixed = lengths(samples_of(Case.MIXED, 1000))
    assert len(mixed) == 16
    assert all(20 <= prompt <= 600 and 3 <= response <= 256 for prompt, response in mixed)
    assert len(set(mixed)) > 12
    session = samples_of(Case.SESSION, 1000)
    assert lengths(session) == [(1060 + 120 * i, 60) for i in range(10)]
    assert sum(map(sum, lengths(session))) == 16_600
    for before, after in itertools.pairwise(session):
        said = before.tokens.prompt_ids + before.tokens.response_ids
        assert after.tokens.prompt_ids[: len(said)] == said


@pytest.mark.parametrize(("case", "read"), [(Case.EQUAL, 16 * 255), (Case.SESSION, 2199)])
def test_the_limit_reads_each_token_once(case: Case, read: int) -> None:
    samples = samples_of(case, 1000)
    rows = dense_rows(Task(samples=tuple(samples), model_path="", full=False))
    assert sum(row.ids.shape[1] for row in rows) == read
    targets = torch.cat([row.targets for row in rows]).tolist()
    assert sorted(targets) == sorted(token for sample in samples for token in sample.tokens.response_ids)


@pytest.mark.parametrize("case", list(Case))
def test_the_trainer_has_the_plain_gradient(case: Case, tmp_path: Path) -> None:
    """And so has the limit where its rows are the samples' own: in a session."""
    samples = samples_of(case, 1000, quick=True)
    task = Task(samples=tuple(samples), model_path=str(build_tiny_model(tmp_path)), full=False)
    old = old_logprobs(task)
    samples = [with_old(sample, logprobs) for sample, logprobs in zip(samples, old, strict=True)]
    task = Task(samples=tuple(samples), model_path=task.model_path, full=False)
    sides: list[Side] = [Plain(task), Ours(task), *([Limit(task)] if case is Case.SESSION else [])]
    for side in sides:
        side.step()
    plain, *others = (side.gradient() for side in sides)
    assert float(plain.norm()) > 0
    for other in others:
        assert float((other - plain).norm() / plain.norm()) < 1e-4


def test_full_weights_learn_too(tmp_path: Path) -> None:
    samples = samples_of(Case.EQUAL, 1000, quick=True)
    task = Task(samples=tuple(samples), model_path=str(build_tiny_model(tmp_path)), full=True)
    ours = Ours(task)
    parameters = list(ours.trainer.model.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    ours.step()
    moved = [not torch.equal(old, now) for old, now in zip(before, parameters, strict=True)]
    assert moved == [True] * len(parameters)


def test_what_trl_is_given_holds_the_samples() -> None:
    samples = samples_of(Case.SESSION, 1000, quick=True)
    padded = _padded(samples[:2])
    assert padded["prompt_ids"].shape == padded["prompt_mask"].shape == (2, 430)
    assert padded["prompt_ids"][0, 120:].tolist() == list(samples[0].tokens.prompt_ids)
    assert padded["prompt_mask"].sum(1).tolist() == [310, 430]
    row = _one_row(samples)
    spoken = row["completion_ids"][0, row["tool_mask"][0] == 1].tolist()
    assert spoken == [token for sample in samples for token in sample.tokens.response_ids]
    assert row["advantages"][0, :60].tolist() == [samples[0].reward] * 60
    assert row["prompt_ids"].shape[1] + row["completion_ids"].shape[1] == 610


def test_ratios_are_of_medians_and_a_session_is_compared_twice() -> None:
    def steps(*seconds: float) -> list[Measured]:
        return [Measured(seconds=value, peak_mib=10.0) for value in seconds]

    session = {
        "ours": steps(1.0, 2.0, 9.0),
        training.COLD: steps(3.0),
        "limit": steps(1.0),
        "trl_1": steps(30.0),
        "trl_one_row": steps(3.0, 5.0),
    }
    assert training.ratios(Case.SESSION, session) == {
        "sessions_vs_limit": 0.5,
        "sessions_vs_trl_rows": 10.0,
        "sessions_vs_trl_one_row": 2.0,
    }
    table = training.table({"lora": {"sessions": training.summary(session)}})
    assert "| lora | sessions | trl_1 | 30.0 | 10 | 10.00 |" in table, "a first step beside a first step"
    assert "| lora | sessions | ours_first | 3.0 | 10 | 1.00 |" in table
    assert "| lora | sessions | trl_one_row | 4.0 | 10 | 2.00 |" in table
    cold = {name: first for name, first in session.items() if name != training.COLD}
    assert training.ratios(Case.SESSION, cold)["sessions_vs_trl_rows"] == 15.0, "all weights: each first is the only"
    mixed = {"ours": steps(2.0), "limit": steps(1.0), "trl_2": steps(3.0)}
    assert training.ratios(Case.MIXED, mixed) == {"mixed_vs_limit": 0.5, "mixed_vs_trl": 1.5}
    assert "| lora | mixed | trl_2 | 3.0 | 10 | 1.50 |" in training.table(
        {"lora": {"mixed": training.summary(mixed)}}
    )


def test_a_plain_loop_that_fails_leaves_the_figures_that_were_measured(tmp_path: Path) -> None:
    task = Task(samples=(), model_path=str(tmp_path / "no model"), full=False)
    found = training.worst_difference([(Case.MIXED, task, torch.zeros(1))], threads=1)
    assert found == {"gradient_difference": None, "gradient_missing": "mixed: its process died"}
    assert "not compared (mixed: its process died)" in training.table(found)
