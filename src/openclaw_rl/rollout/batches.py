"""When a batch is due: full, or old enough. Pure, and shared by the trainer and by everybody who reports on it."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.config import RolloutConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DueDecision:
    """Whether to train now. `size` is how many samples to take, oldest first: 0 unless due. `why` is a sentence."""

    due: bool
    size: int
    why: str


def batch_due(ready_count: int, oldest_created_at: float | None, now: float, config: RolloutConfig) -> DueDecision:
    """Decide whether `ready_count` samples, the oldest created at `oldest_created_at`, make a batch at `now`.

    A full batch is due at once, and never grows beyond `batch_size`: the surplus waits for the next one, so that
    a learning rate means the same on a busy day. A smaller one is due when its oldest sample has waited for
    `max_batch_wait_s` and it has at least `min_batch_size` samples. Times are in seconds since the epoch.

    Raises:
        ValueError: if there are samples and no time of the oldest.
    """
    full, least = config.batch_size, min(config.min_batch_size, config.batch_size)
    if ready_count <= 0:
        return DueDecision(due=False, size=0, why=samples_words(0, full))
    if oldest_created_at is None:
        raise ValueError(f"{ready_count} samples are ready, so the oldest has a time")
    count = samples_words(ready_count, full)
    if ready_count >= full:
        return DueDecision(due=True, size=full, why=count)
    age = max(0.0, now - oldest_created_at)
    waited = f"{count}; the oldest is {age:.0f} s old, due at {config.max_batch_wait_s:.0f} s"
    if ready_count < least:
        return DueDecision(due=False, size=0, why=f"{waited}, but never with fewer than {least}")
    if age < config.max_batch_wait_s:
        return DueDecision(due=False, size=0, why=waited)
    return DueDecision(due=True, size=ready_count, why=waited)


def samples_words(ready: int, batch_size: int) -> str:
    """`3 of 4 samples`; where there are more than a batch takes: `18 samples ready (a batch takes 4)`."""
    if ready > batch_size:
        return f"{ready} samples ready (a batch takes {batch_size})"
    return f"{ready} of {batch_size} samples"
