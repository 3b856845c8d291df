"""OpenClaw-RL: the agent you run yourself gets better by being used."""

__version__ = "0.1.0"
