"""Verdict logits on the real SmolLM2, through the judge's own path."""

from __future__ import annotations

import asyncio
import dataclasses
import logging

import pytest
import torch

from openclaw_rl.config import Config
from openclaw_rl.judging.cases import shipped_cases
from openclaw_rl.judging.evaluate import evaluate
from openclaw_rl.judging.local_scoring import LocalScoring
from openclaw_rl.judging.reaction_judge import ReactionJudge
from openclaw_rl.judging.verdict_logits import VerdictLogitsScorer
from openclaw_rl.models import resolve_model

log = logging.getLogger(__name__)


@pytest.mark.real_model
@pytest.mark.timeout(900)
def test_verdict_logits_of_smollm2() -> None:
    torch.set_num_threads(1)
    engine = LocalScoring(resolve_model(Config().model))
    judge = ReactionJudge(VerdictLogitsScorer(engine, model="smollm2"))
    for name, floor in (("feedback", 0.8), ("held_aside", 0.75)):
        report = asyncio.run(evaluate(judge, shipped_cases(name)))
        log.info("%s: %s", name, dataclasses.asdict(report))
        assert (report.by_language["en"].accuracy_signed or 0) >= floor
        assert report.failures == {}
