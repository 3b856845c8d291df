"""`judge.kind = "llm"` over feedback.jsonl through a real endpoint: what the endpoint thinks is what comes out."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import JudgeConfig
from openclaw_rl.judging.cases import Case, shipped_cases
from openclaw_rl.judging.evaluate import Evaluation, evaluate
from openclaw_rl.judging.factory import build_judge
from openclaw_rl.judging.llm import described
from openclaw_rl.judging.votes import defuse
from tests.builders import make_config
from tests.judging.judge_server import Answer, judge_server

CASES = shipped_cases("feedback")
HINT = "Keep to what was asked, and say it in fewer words."


def oracle(wrong: frozenset[int] = frozenset()) -> Answer:
    """Knows every case by what it is shown of it, and tells its label, or for `wrong` cases another verdict."""
    known = {
        (defuse(case.task), defuse(case.output), defuse(described(case.next_state))): n
        for n, case in enumerate(CASES)
    }
    assert len(known) == len(CASES)

    def answer(body: dict[str, Any]) -> str:
        shown = body["messages"][-1]["content"]
        parts = [shown.partition(f"----- {name} -----\n")[2].partition("\n-----")[0] for name in
                 ("the task", "the answer", "next state")]  # fmt: skip
        number = known[(parts[0], parts[1], parts[2])]
        case = CASES[number]
        score = case.score if number not in wrong else (-case.score or 1)
        hint = HINT if case.corrective else None
        if "response_format" in body:
            return json.dumps({"score": score, "hint": hint})
        marked = f" [HINT_START]{hint}[HINT_END]" if hint else ""
        return f"As the next state shows.{marked} \\boxed{{{score}}}"

    return answer


def evaluated(tmp_path: Path, answer: Answer, mode: str = "well", cases: list[Case] = CASES) -> Evaluation:
    with judge_server(answer) as server:
        server.mode = mode
        judge = JudgeConfig(kind="llm", base_url=server.url, votes=3, timeout_s=30.0)

        async def go() -> Evaluation:
            built = build_judge(make_config(tmp_path, judge=judge))
            try:
                return await evaluate(built, cases, workers=4)
            finally:
                await built.close()

        return asyncio.run(go())


@pytest.mark.parametrize("mode", ["well", "without_formats"])
def test_with_an_oracle_the_path_is_lossless(tmp_path: Path, mode: str) -> None:
    report = evaluated(tmp_path, oracle(), mode)
    assert report.overall.accuracy == report.overall.accuracy_signed == 1.0
    assert (report.hint_precision, report.hint_recall) == (1.0, 1.0)
    assert report.failures == {}
    assert [report.by_language[name].accuracy for name in ("en", "zh")] == [1.0, 1.0]


def test_with_noise_the_accuracy_is_that_of_the_noise(tmp_path: Path) -> None:
    wrong = frozenset(random.Random(1).sample(range(len(CASES)), 12))
    report = evaluated(tmp_path, oracle(wrong))
    signed = [n for n, case in enumerate(CASES) if case.score]
    assert set(report.misjudged) == wrong
    assert report.overall.accuracy == pytest.approx(1 - len(wrong) / len(CASES))
    assert report.overall.accuracy_signed == pytest.approx(1 - len(wrong & set(signed)) / len(signed))
