"""The engine benchmark with a tiny model: all sides draw as much, and the log-probabilities are of one policy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.__main__ import main
from benchmarks.engine_sides import Embedded, Round, Static, Task, prompts_of, write_adapter
from benchmarks.engine_vllm import NotHere

from benchmarks import engine
from openclaw_rl.serving.engines.interpreter import ENVIRONMENTS
from openclaw_rl.testing.tiny_model import build_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_every_side_draws_as_many_tokens_from_the_same_policy(tiny: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    write_adapter(tiny, tmp_path)
    task = Task(
        model=tiny, adapter=tmp_path, dtype="float32", threads=1, prompt_tokens=20, new_tokens=150, apart_s=0.002
    )
    prompts = prompts_of(tiny, 4, task.prompt_tokens, seed=1)
    assert prompts != prompts_of(tiny, 4, task.prompt_tokens, seed=2)
    means = []
    for side in (Embedded(task, parallel=4), Static(task), Static(task, merged=True)):
        found = side.generate(prompts)
        side.close()
        assert [len(answer) for answer in found.logprobs] == [150] * 4
        drawn = torch.tensor(found.logprobs)
        assert bool((drawn < 0).all())
        means.append(float(drawn.mean()))
    # 600 draws from one distribution: its mean log-probability is the same up to chance.
    assert max(means) - min(means) < 0.6


def test_prompts_count_in_the_time_only() -> None:
    measured = Round(seconds=2.0, logprobs=((-1.0, -2.0), (-1.0,)))
    assert (measured.tokens, measured.tokens_per_s) == (3, 1.5)


def test_the_ratio_is_to_the_static_batch_beside_the_adapter() -> None:
    figures = {"embedded": {"1": 9.0, "8": 30.0}, "static": {"1": 10.0, "8": 20.0}}
    assert engine.ratio(figures) == {"1": 0.9, "8": 1.5}
    assert engine.ratio({**figures, "static": None}) is None


def test_the_benchmark_runs_and_says_what_it_lacks(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--parallel", "1", "3", "--prompt-tokens", "12", "--new-tokens", "5", "--rounds", "1"]
    sides = ["--sides", "embedded", "static", "--model-path", str(tiny), "--long-prompt", "600", "--json"]
    assert main(["engine", *small, *sides]) == 0
    found = json.loads(capsys.readouterr().out)
    for side in ("embedded", "static"):
        assert found[side].keys() == {"1", "3"}
        assert min(found[side].values()) > 0
        assert found["dtype"][side] == "float32"
    assert found["long_prompt"]["longest_gap_ms"] >= found["long_prompt"]["usual_gap_ms"] > 0
    assert found["vllm"] is None
    assert found["ratio"].keys() == {"1", "3"}


def test_a_machine_without_vllm_is_told_so(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = replace(ENVIRONMENTS["vllm"], python=tmp_path / "none" / "python")
    monkeypatch.setitem(ENVIRONMENTS, "vllm", nowhere)
    small = ["--parallel", "1", "--prompt-tokens", "8", "--new-tokens", "2", "--rounds", "1", "--sides", "embedded"]
    assert main(["engine", *small, "vllm", "--model-path", str(tiny), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["vllm"] is None
    assert "make vllm" in found["why_not"]["vllm"]


class _Side:
    """Gives one token a second, so often; then it is gone."""

    def __init__(self, times: int) -> None:
        self._left = times

    def generate(self, prompts: Sequence[Sequence[int]]) -> Round:
        if self._left == 0:
            raise NotHere("it said no")
        self._left -= 1
        return Round(seconds=float(len(prompts)), logprobs=((-1.0,),) * len(prompts))

    def close(self) -> None:
        pass


def test_what_is_measured_of_vllm_is_told_by_the_number_of_requests(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "Vllm", lambda _task, **_options: _Side(times=99))
    assert main(["engine", "--sides", "vllm", "--rounds", "1", "--model-path", str(tiny), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["vllm"] == {"1": 1.0, "8": 1.0, "32": 1.0}
    assert found["dtype"] == {"vllm": "float32"}
    assert found["embedded"] is found["static"] is None


def test_a_side_that_goes_takes_nobodys_figures_with_it(tiny: Path, tmp_path: Path) -> None:
    task = Task(model=tiny, adapter=tmp_path, dtype="float32", threads=1, prompt_tokens=5, new_tokens=1, apart_s=0.0)
    sides = {"static": _Side(times=9), "vllm": _Side(times=2)}
    found, gone = engine._measure(sides, task, parallel=[1, 2], rounds=1)
    assert found == {"static": {"1": 1.0, "2": 1.0}, "vllm": {"1": 1.0}}
    assert gone == {"vllm": "it said no"}
