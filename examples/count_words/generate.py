"""A generate function: a task is tried, checked, and tried once more with what the check said. No judge, no user."""

from __future__ import annotations

from openclaw_rl.rollout.extension_contracts import Policy, RolloutResult, Task

TRIES = 2


async def generate(task: Task, policy: Policy) -> RolloutResult:
    """Ask for an answer of so many words; the reward is 1 for exactly so many, and falls to -1 with the distance."""
    wanted = int(task.metadata["words"])
    messages = list(task.messages)
    written = 0
    for attempt in range(1, TRIES + 1):
        answer = await policy.chat(messages, max_tokens=4 * wanted)
        written = len(answer.text.split())
        if written == wanted:
            return RolloutResult(reward=1.0, ended=f"right_{attempt}")
        said = f"That was {written} words, not {wanted}. Answer again in exactly {wanted} words."
        messages += [answer.message, {"role": "user", "content": said}]
    return RolloutResult(reward=reward(written, wanted), ended="wrong")


def reward(written: int, wanted: int) -> float:
    """1 - 2 · distance / wanted, never below -1."""
    return max(-1.0, 1.0 - 2.0 * abs(written - wanted) / wanted)
