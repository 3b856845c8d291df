"""Reward models of the user's own: what is loaded, what is refused at start-up, what a number means."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.config import Config, JudgeConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.judging.base import JudgeError, JudgeMisconfigured, JudgeUnavailable
from openclaw_rl.judging.factory import build_judge
from openclaw_rl.judging.reward_models import DaemonThreads, RewardJudge
from openclaw_rl.rollout.samples import build_sample
from openclaw_rl.types import ExclusionReason, Judgement, JudgementOutcome, Method, Turn, TurnState
from tests.builders import make_config, make_request, make_turn, tool, user


def turn_with(*next_state: Any) -> Turn:
    request = make_request(messages=({"role": "system", "content": "Be brief."}, user("Write a haiku.")))
    answer = {"role": "assistant", "content": "Rain and rain."}
    return make_turn(request=request, answer=answer, state=TurnState.JUDGING, next_state=next_state)


def custom(tmp_path: Path, code: str, name: str = "score", **values: Any) -> Config:
    file = tmp_path / f"mine{abs(hash(code))}.py"
    file.write_text(code)
    return make_config(tmp_path, judge=JudgeConfig(kind="custom", custom_rm_path=f"{file}:{name}", **values))


def judged(config: Config, turn: Turn) -> Judgement:
    return asyncio.run(build_judge(config).judge(turn))


def by(answer: Any, **values: Any) -> Judgement:
    async def score(prompt: str, response: str, next_state: str) -> Any:
        return answer

    options: dict[str, Any] = {"kind": "custom", "version": "v", "score_range": (-1.0, 1.0), "workers": 1, **values}
    return asyncio.run(RewardJudge(score, **options).judge(turn_with(user("Shorter, please."))))


def test_a_function_gets_three_texts_and_its_number_is_the_score(tmp_path: Path) -> None:
    code = (
        "def score(prompt, response, next_state):\n"
        "    assert prompt == '[system] Be brief.\\n[user] Write a haiku.', prompt\n"
        "    assert response == 'Rain and rain.'\n"
        "    assert next_state == '[tool] ok\\n[user] Thanks.', next_state\n"
        "    return 0.25\n"
    )
    judgement = judged(custom(tmp_path, code), turn_with(tool("ok"), user("Thanks.")))
    assert (judgement.outcome, judgement.score, judgement.hint) == (JudgementOutcome.SCORED, 0.25, None)
    assert judgement.kind == "custom"
    assert judgement.prompt_version.startswith("custom@")
    assert judgement.details == {"by": "custom", "raw": 0.25, "range": [-1.0, 1.0]}


@pytest.mark.parametrize(
    "code",
    [
        "async def score(prompt, response, next_state):\n    return 1.0\n",
        "class Scorer:\n    async def __call__(self, p, r, n):\n        return 1.0\nscore = Scorer()\n",
        "class Scorer:\n    def score(self, prompt, response, next_state):\n        return 1.0\nscore = Scorer()\n",
    ],
)
def test_async_functions_and_objects_do_as_well(tmp_path: Path, code: str) -> None:
    assert judged(custom(tmp_path, code), turn_with(user("ok"))).score == 1.0


def test_the_class_of_the_earlier_guide(tmp_path: Path) -> None:
    code = (
        "class CustomRewardModel:\n"
        "    def __init__(self, votes):\n        self.votes = votes\n"
        "    def score(self, prompt, response, next_state):\n        return self.votes\n"
        "def get_reward_model(config):\n    return CustomRewardModel(config.judge.votes)\n"
    )
    config = custom(tmp_path, code, "get_reward_model", votes=7, score_range=(0.0, 10.0))
    assert judged(config, turn_with(user("ok"))).score == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("code", "name", "said"),
    [
        ("x = 1\n", "score", "no attribute 'score'"),
        ("score = 1\n", "score", "can neither be called nor has it a method score"),
        ("class Model:\n    pass\n", "Model", "is a class: name a function get_reward_model"),
        ("def score(response):\n    return 1\n", "score", "must take (prompt, response, next_state)"),
        ("def score(prompt, response, next_state, *, key):\n    return 1\n", "score", "missing a required"),
        ("1 / 0\n", "score", "ZeroDivisionError"),
        ("def get_reward_model(config):\n    raise KeyError('x')\n", "get_reward_model", "KeyError"),
        ("def get_reward_model(config):\n    raise SystemExit(3)\n", "get_reward_model", "SystemExit"),
        ("import sys\nsys.exit(3)\n", "score", "SystemExit"),
    ],
)
def test_what_cannot_be_used_is_said_at_start_up(tmp_path: Path, code: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"judge\.custom_rm_path") as caught:
        build_judge(custom(tmp_path, code, name))
    assert said in str(caught.value)


@pytest.mark.parametrize("path", ["nowhere.py:score", "no_module_of_this_name:score", "score"])
def test_a_path_that_leads_nowhere(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"judge\.custom_rm_path"):
        build_judge(make_config(tmp_path, judge=JudgeConfig(kind="custom", custom_rm_path=path)))


def test_none_is_absence_and_gives_no_sample() -> None:
    judgement = by(None)
    assert (judgement.outcome, judgement.score, judgement.hint) == (JudgementOutcome.ABSENT, None, None)
    assert build_sample(make_turn(), judgement, Method.COMBINE, now=1.0) is ExclusionReason.NO_SIGNAL


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (1.01, "out_of_range"),
        (-2, "out_of_range"),
        (math.nan, "not_finite"),
        (math.inf, "not_finite"),
        (True, "not_a_number"),
        ("0.5", "not_a_number"),
        ([0.5], "not_a_number"),
    ],
)
def test_what_is_no_score_is_a_failure_with_a_name(answer: Any, reason: str) -> None:
    with pytest.raises(JudgeError) as caught:
        by(answer)
    assert caught.value.reason == reason


@given(st.floats(-1e6, 1e6), st.floats(0.001, 1e6), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_range_is_mapped_to_its_ends_and_in_order(low: float, width: float, a: float, b: float) -> None:
    high = low + width
    judge = RewardJudge(lambda *_: 0.0, kind="custom", version="v", score_range=(low, high), workers=1)
    assert judge._mapped(low) == -1.0
    assert judge._mapped(high) == pytest.approx(1.0)
    first, second = sorted(min(high, low + share * width) for share in (a, b))
    assert -1.0 <= judge._mapped(first) <= judge._mapped(second) <= 1.0


def test_a_bad_score_takes_the_users_own_correction_as_the_hint() -> None:
    assert by(-1.0).hint == "Shorter, please."
    assert by(1.0).hint is None


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        ("ValueError('a secret')", JudgeError, "reward_model_raised"),
        ("ConnectionError()", JudgeUnavailable, "reward_model_connection"),
        ("TimeoutError()", JudgeUnavailable, "reward_model_connection"),
    ],
)
def test_what_the_users_code_raises_is_counted_and_its_words_are_not_logged(
    tmp_path: Path, error: str, kind: type[JudgeError], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    code = f"def score(prompt, response, next_state):\n    raise {error}\n"
    with pytest.raises(kind) as caught:
        judged(custom(tmp_path, code), turn_with(user("ok")))
    assert caught.value.reason == reason
    assert "secret" not in caplog.text + str(caught.value)


def test_a_function_that_hangs_holds_up_only_itself() -> None:
    release = threading.Event()

    async def go() -> None:
        threads = DaemonThreads(2)
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await threads.run(release.wait, 30)
        assert await threads.run(lambda: 5) == 5
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await threads.run(release.wait, 30)
        with pytest.raises(JudgeUnavailable, match="hang"):
            await threads.run(lambda: 5)
        release.set()
        while time.monotonic() - started < 5:
            await asyncio.sleep(0.01)
            try:
                assert await threads.run(lambda: 6) == 6
                return
            except JudgeUnavailable:
                continue
        raise AssertionError("the threads did not come back")

    asyncio.run(go())


def test_an_unusable_judge_is_a_configuration_error() -> None:
    assert issubclass(JudgeMisconfigured, ConfigError)
