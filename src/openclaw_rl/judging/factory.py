"""The judge that the configuration asks for; imports only what that judge needs."""

from __future__ import annotations

from openclaw_rl.config import Config
from openclaw_rl.judging.base import Judge


def build_judge(config: Config) -> Judge:
    """Build the judge of `config.judge.kind`.

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
            from openclaw_rl.serving.engines.embedded.client import EmbeddedEngine

            return ReactionJudge(VerdictLogitsScorer(EmbeddedEngine.from_config(config), model=config.model.path))
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
