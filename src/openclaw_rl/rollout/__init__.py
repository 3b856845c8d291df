"""The rollout loop: next states, the life of a turn, samples, and when a batch is due."""
