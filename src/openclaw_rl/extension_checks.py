"""The user's own code that a configuration names, loaded and looked at as each loop does it when it starts."""

from __future__ import annotations

from openclaw_rl.config import Config


def check_extensions(config: Config) -> None:
    """Load what the options name, hold it against its contracts, and let go of it: for who asks before a start.

    Imports only what those options need; without any, nothing.

    Raises:
        ConfigError: the first that is not there, does not fit its contract, or raises.
    """
    if config.judge.kind == "custom":
        from openclaw_rl.judging.reward_models import load_custom

        load_custom(config)
    if config.training.enabled and config.training.gate.evaluation_path is not None:
        from openclaw_rl.training.evaluation import load_evaluation

        load_evaluation(config.training.gate)
    if config.training.enabled and config.training.custom_loss_function_path is not None:
        from openclaw_rl.training.custom_loss import CustomLoss

        CustomLoss.load(config.training.custom_loss_function_path, config.training.loss)
    if config.rollout.makes_rollouts:
        from openclaw_rl.rollout.extension_loading import load_generate, load_rollout
        from openclaw_rl.rollout.tasks import read_tasks

        if config.rollout.tasks is not None:
            read_tasks(config.rollout.tasks)
        load_rollout(config)
        load_generate(config)
