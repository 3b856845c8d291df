"""The file of tasks, line by line, and the contracts that code of the user's own is held against at start-up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.rollout.extension_contracts import RolloutResult
from openclaw_rl.rollout.extension_loading import load_generate, load_rollout
from openclaw_rl.rollout.run_tasks import one_answer, run_tasks
from openclaw_rl.rollout.runner import group_id_of, no_room
from openclaw_rl.rollout.tasks import parse_task, read_tasks


def test_a_line_is_a_prompt_or_messages(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(
        '{"id": "a", "prompt": "Hi"}\n\n{"messages": [{"role": "system", "content": "s"}], "metadata": {"x": 1}}\n'
    )
    first, other = read_tasks(file)
    assert (first.task_id, first.messages) == ("a", ({"role": "user", "content": "Hi"},))
    assert other.task_id == other.digest[:16]
    assert other.metadata == {"x": 1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"promt": "Hi"}', "unknown key 'promt': the nearest valid one is 'prompt'"),
        ('{"prompt": "Hi", "messages": []}', "either messages or prompt"),
        ('{"id": 1}', "either messages or prompt"),
        ('{"messages": []}', "at least one"),
        ('{"messages": [{"content": "no role"}]}', "with a role"),
        ('{"prompt": "Hi", "tools": {}}', "tools is a list"),
        ('{"prompt": "Hi", "metadata": []}', "metadata"),
        ('{"prompt": "Hi", "id": true}', "id is a text"),
        ("[1]", "not a JSON object"),
        ("{", "Expecting"),
    ],
)
def test_what_is_no_task_is_an_error_that_names_the_line(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(ConfigError, match="line 2") as caught:
        read_tasks(file)
    assert said in str(caught.value)


def test_two_tasks_with_one_id_no_task_and_no_file_are_errors(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}\n')
    with pytest.raises(ConfigError, match="lines 1 and 2"):
        read_tasks(file)
    file.write_text("\n")
    with pytest.raises(ConfigError, match="no task"):
        read_tasks(file)
    with pytest.raises(ConfigError, match="cannot read"):
        read_tasks(tmp_path / "none.jsonl")


def test_another_content_or_pass_is_another_group() -> None:
    one, other = parse_task('{"id": "a", "prompt": "x"}'), parse_task('{"id": "a", "prompt": "y"}')
    assert len({group_id_of(one, 1), group_id_of(one, 2), group_id_of(other, 1)}) == 3
    assert group_id_of(one, 1) == group_id_of(parse_task(json.dumps({"prompt": "x", "id": "a"})), 1)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), True, "1"])
def test_a_reward_is_a_finite_number_or_none(reward: object) -> None:
    with pytest.raises(ValueError, match="finite number"):
        RolloutResult(reward=reward)  # type: ignore[arg-type]
    assert RolloutResult(reward=None).reward is None


@pytest.mark.parametrize(
    ("untrained", "begun", "turns", "most", "room"),
    [
        (0, 0, 1.0, 2, True),  # a group that waits for nothing begins, though it is more than a step's samples
        (0, 4, 1.0, 8, True),
        (0, 4, 1.0, 7, False),
        (4, 0, 2.0, 12, True),
        (5, 0, 2.0, 12, False),
        (0, 4, 2.0, 15, False),
    ],
)
def test_no_group_begins_that_would_be_stale(untrained: int, begun: int, turns: float, most: int, room: bool) -> None:
    why = no_room(untrained=untrained, begun=begun, next_group=4, mean_turns=turns, most=most)
    assert (why is None) is room
    assert room or "trainer" in str(why)


CODE = """
import asyncio
async def generate(task, policy): ...
async def with_default(task, policy, tries=2): ...
async def surplus(task, policy, polcy): ...
async def one(task): ...
def plain(task, policy): ...
class Generate: ...
class Callable:
    async def __call__(self, task, policy): ...
made = Callable()
number = 3
async def rollout(tasks, generate, runner):
    yield None
async def no_generator(tasks, generate, runner): ...
"""


def config(tmp_path: Path, **rollout: object) -> Config:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "Hi"}\n')
    return Config.model_validate({"rollout": {"tasks": tmp_path / "tasks.jsonl", **rollout}})


@pytest.mark.parametrize("name", ["generate", "with_default", "made"])
def test_a_generate_function_that_fits(tmp_path: Path, name: str) -> None:
    assert callable(load_generate(config(tmp_path, custom_generate_function_path=f"{tmp_path}/mine.py:{name}")))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("generat", "did you mean 'generate'"),
        ("surplus", "'polcy' is given by nobody; 'policy' is"),
        ("one", "must take (task, policy)"),
        ("plain", "must be an async function"),
        ("Generate", "is a class"),
        ("number", "is a int"),
        ("rollout", "must take (task, policy)"),
    ],
)
def test_a_generate_function_that_does_not_fit_is_told_why(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.custom_generate_function_path") as caught:
        load_generate(config(tmp_path, custom_generate_function_path=f"{tmp_path}/mine.py:{name}"))
    assert said in str(caught.value)


def test_rollout_functions(tmp_path: Path) -> None:
    good = config(tmp_path, rollout_function_path=f"{tmp_path}/mine.py:rollout")
    assert callable(load_rollout(good))
    assert load_generate(good) is one_answer
    bad = config(tmp_path, rollout_function_path=f"{tmp_path}/mine.py:no_generator")
    with pytest.raises(ConfigError, match="async generator"):
        load_rollout(bad)
    assert load_rollout(Config()) is run_tasks


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        ({"tasks": "t.jsonl"}, "custom_generate_function_path"),
        ({"custom_generate_function_path": "a:b"}, "needs rollout.tasks"),
        ({"passes": 2}, "rollout.passes does nothing"),
        ({"rollout_function_path": "a:b", "reward_range": [1, 0]}, "lower of two"),
    ],
)
def test_settings_that_cannot_be_honoured(rollout: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Config.model_validate({"rollout": rollout})


def test_without_a_key_that_trains_there_are_no_rollouts(tmp_path: Path) -> None:
    keys = [{"name": "a", "key": "k", "train": False}]
    with pytest.raises(ValueError, match="train = true"):
        Config.model_validate({
            "serving": {"api_keys": keys},
            "rollout": {"tasks": "t.jsonl", "custom_generate_function_path": "a:b"},
        })  # fmt: skip
