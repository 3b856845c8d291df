"""Which GPUs each of several servers gets that are started here: two on one would each want nearly all its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.config_engine import SERVERS
from openclaw_rl.config_sources import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus_here() -> int:
    """How many GPUs of NVIDIA this machine shows."""
    return sum(1 for _ in Path("/dev").glob("nvidia[0-9]*"))


def gpus_of_each(config: Config, environment: Mapping[str, str], here: int) -> Sequence[Mapping[str, str]]:
    """What says to each replica which GPUs are its own: as many for each, in their order; nothing on a CPU.

    Args:
        config: the deployment's.
        environment: ours; `CUDA_VISIBLE_DEVICES` says what we may use.
        here: how many GPUs the machine has.

    Raises:
        ConfigError: there are fewer than servers.
    """
    engine = config.engine
    gpus = _visible(environment.get(VISIBLE), here)
    if engine.kind not in SERVERS or engine.urls or config.model.device == "cpu" or not gpus:
        return [{}] * engine.count
    share = len(gpus) // engine.count
    if not share:
        raise ConfigError(
            f"engine.replicas = {engine.count}, and there are {len(gpus)} GPUs ({', '.join(gpus)}): each "
            f"{engine.kind} needs one of its own; where they are to compute on the CPU, set model.device = cpu"
        )
    firsts = range(0, share * engine.count, share)
    return [{VISIBLE: ",".join(gpus[first : first + share])} for first in firsts]


def _visible(said: str | None, here: int) -> list[str]:
    """The GPUs that may be used, as CUDA reads its variable: up to the first that is none."""
    if said is None:
        return [str(number) for number in range(here)]
    gpus: list[str] = []
    for one in (part.strip() for part in said.split(",")):
        if not one or one == "NoDevFiles" or one.startswith("-"):
            break
        gpus.append(one)
    return gpus
