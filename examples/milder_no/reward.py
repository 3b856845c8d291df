"""The reward of the example method: answers of up to 40 words are good, of 120 and more bad."""

from __future__ import annotations

GOOD_WORDS, BAD_WORDS = 40, 120


def score(prompt: str, response: str, next_state: str) -> float | None:
    """From 1 down to -1; None for an answer without words, such as a bare tool call."""
    words = len(response.split())
    if not words:
        return None
    over = (words - GOOD_WORDS) / (BAD_WORDS - GOOD_WORDS)
    return 1.0 - 2.0 * min(1.0, max(0.0, over))
