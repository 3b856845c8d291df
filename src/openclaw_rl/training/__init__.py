"""The training loop: samples become a new policy version."""
