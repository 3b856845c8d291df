"""The judge that the configuration asks for; imports only what that judge needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openclaw_rl.config import Config
from openclaw_rl.judging.base import Judge

if TYPE_CHECKING:
    from openclaw_rl.judging.local_scoring import LocalScoring


def build_judge(config: Config, *, alone: bool = False) -> Judge:
    """Build the judge of `config.judge.kind`. `alone`: without a running engine, loading what it needs here.

    Raises:
        JudgeMisconfigured: if it cannot work as configured.
    """
    match config.judge.kind:
        case "classifier":
            from openclaw_rl.judging.classifier import ClassifierScorer
            from openclaw_rl.judging.reaction_judge import ReactionJudge

            return ReactionJudge(ClassifierScorer())
        case "verdict_logits":
            from openclaw_rl.judging.reaction_judge import ReactionJudge
            from openclaw_rl.judging.verdict_logits import VerdictLogitsScorer
            from openclaw_rl.serving.engines.factory import connect

            engine = _local_engine(config) if alone else connect(config)
            return ReactionJudge(VerdictLogitsScorer(engine, model=config.model.path))
        case "llm":
            from openclaw_rl.judging.llm import LlmJudge, endpoint_of, key_of

            return LlmJudge(
                config.judge,
                base_url=endpoint_of(config),
                key=key_of(config),
                structured=config.judge.base_url is not None,
            )
        case "custom":
            from openclaw_rl.judging.reward_models import DEFAULT_RANGE, RewardJudge, load_custom

            score, version = load_custom(config)
            return RewardJudge(
                score,
                kind="custom",
                version=version,
                score_range=config.judge.score_range or DEFAULT_RANGE,
                workers=config.judge.workers,
            )
        case "reward_model":
            from openclaw_rl.judging.reward_models import RewardJudge
            from openclaw_rl.judging.sequence_classifier import PROBABILITY, SequenceClassifier

            model = SequenceClassifier(config)
            return RewardJudge(
                model.score,
                kind="reward_model",
                version=model.version,
                score_range=config.judge.score_range or PROBABILITY,
                workers=config.judge.workers,
            )
        case "scripted":
            from openclaw_rl.testing.scripted_judge import ScriptedJudge

            return ScriptedJudge()


def _local_engine(config: Config) -> LocalScoring:
    from openclaw_rl.judging.local_scoring import LocalScoring
    from openclaw_rl.models import resolve_model

    return LocalScoring(resolve_model(config.model))
