"""The section `policies`: one policy for all, or one for each user or key."""

from __future__ import annotations

from typing import Literal

from openclaw_rl.config_base import Count, Section


class PoliciesConfig(Section):
    """Whose policy learns from an answer, and who is served with it (docs: "A policy per user")."""

    per: Literal["none", "user", "key"] = "none"
    """`none`: one policy for all. `user`: one for each user, who is the body's `user`, else the header `X-User-Id`,
    else the key's name. `key`: one for each API key."""
    states_in_memory: Count = 4
    """Adapters and optimisers that the trainer keeps at hand for owners whose turn comes again; others are read from
    their checkpoints. One of rank 16 for SmolLM2 takes about 60 MB."""

    @property
    def owned(self) -> bool:
        """Whether policies belong to somebody."""
        return self.per != "none"


def check_policies(
    policies: PoliciesConfig, *, keys: int, resume_from: str, use_lora: bool, engines: int, rollouts: bool
) -> None:
    """Refuse what cannot be had together.

    Args:
        policies: the section.
        keys: how many API keys are configured.
        resume_from: `training.resume_from_checkpoint`.
        use_lora: whether adapters are trained, not whole models.
        engines: how many there are of the engine.
        rollouts: whether rollouts of tasks are made.

    Raises:
        ValueError: naming the options.
    """
    if not policies.owned:
        return
    per = f"policies.per = {policies.per}"
    if policies.per == "key" and not keys:
        raise ValueError(f"{per} needs serving.api_keys: without a key nobody has a policy")
    if not use_lora:
        raise ValueError(f"{per} needs training.use_lora = true: an owner's policy is an adapter on the shared base")
    if engines > 1:
        raise ValueError(f"{per} needs one engine, not {engines}: replicas serve one policy (engine.replicas, urls)")
    if rollouts and not keys:
        raise ValueError(f"{per} with rollout.tasks needs serving.api_keys: rollouts are the policy's of their key")
    if resume_from != "auto":
        raise ValueError(
            f"{per} and training.resume_from_checkpoint = {resume_from}: a checkpoint begins the shared policy only"
        )
