"""What a vLLM server can do, found out by asking it: an engine that lacks something says so at the start, by name."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.serving.engines.protocol import EngineError, UnknownVersion
from openclaw_rl.serving.engines.requirements import OTHER_DIRECTORY, Situation
from openclaw_rl.serving.engines.vllm import wire
from openclaw_rl.serving.engines.vllm.api import RPC, VllmApi
from openclaw_rl.serving.engines.vllm.capabilities import EXTENSION, MADE_FOR

logger = logging.getLogger(__name__)

T = TypeVar("T")
_PROBE_IDS = (1, 2, 3, 4)
_LISTED = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A server that will do. `context`: its longest sequence (tokens); `base`: its name for the model itself.

    `weights_label`: what it calls the weights it has now, None where it cannot swap them; that takes its routes for
    developers and our extension of its workers. `root`: where it has the model from, `max_lora_rank`: of its
    adapters, `device`: "cpu" or what it computes on; each None where it does not say.
    """

    base: str
    context: int
    weights_label: str | None
    root: str | None = None
    max_lora_rank: int | None = None
    device: str | None = None


async def check_server(api: VllmApi, *, attached: bool) -> Found:
    """Ask a server that answers for everything that we need of it. `attached`: somebody else has started it.

    One that is paused would not answer, so it is told to go on.

    Raises:
        ConfigError: it lacks something; the message names the argument that it must be started with, and the version
            that has it.
        EngineError: it does not answer as vLLM does.
    """
    with contextlib.suppress(UnknownVersion):  # without its routes for developers nobody can have paused it
        await api.resume()  # whoever spoke for it before us may have been killed in the middle
    card = next((card for card in await api.models() if not card.get("parent")), None)
    if card is None:
        raise EngineError("vLLM names no model")
    base = str(card["id"])
    one = {"model": base, "token_ids": list(_PROBE_IDS), "sampling_params": {"max_tokens": 1}}
    if await api.status_of("POST", wire.GENERATE, one) != HTTPStatus.OK:
        raise _lacks("the route for tokens in, tokens out", "--enable-scale-out")
    if not await api.knows_adapters():
        raise _lacks("loading adapters", "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment")
    if not await _says_what_it_draws_from(api, base):
        raise _lacks("log-probabilities at the temperature of sampling", "--logprobs-mode processed_logprobs")
    developer = await api.status_of("GET", "/weight_info") == HTTPStatus.OK
    extended = developer and await api.status_of("POST", RPC, {"method": "openclaw_present"}) == HTTPStatus.OK
    configuration = await api.configuration() if attached and developer else {}
    return Found(
        base=base,
        context=int(card["max_model_len"]),
        weights_label=await api.weights_label() if extended else None,
        root=card.get("root"),
        max_lora_rank=_said(configuration, "lora_config", "max_lora_rank", int),
        device=_said(configuration, "device_config", "device_type", str),
    )


def _said(configuration: Mapping[str, Any], section: str, key: str, kind: type[T]) -> T | None:
    found = configuration.get(section)
    value = found.get(key) if isinstance(found, Mapping) else None
    return value if isinstance(value, kind) else None


def check_fit(found: Found, situation: Situation, *, context: int) -> None:
    """Hold a server against what is to be run on it. `context`: the tokens that it has to hold.

    Raises:
        ConfigError: it lacks something; the message names the argument that it must be started with, and the version
            that has it.
    """
    if found.context < context:
        raise _lacks(f"so long a context ({found.context} tokens)", f"--max-model-len of at least {context}")
    if situation.serves_whole_models and found.weights_label is None:
        needed = f"VLLM_SERVER_DEV_MODE=1 in its environment and --worker-extension-cls {EXTENSION}"
        if situation.trains and not situation.trains_adapters:
            raise _lacks("swapping whole models (training.use_lora = false)", needed)
        what = "swapping whole models (one is in service in this run_dir)"
        raise _lacks(what, needed, instead=OTHER_DIRECTORY)
    _check_base_beside_adapters(found, situation)
    rank = situation.config.training.lora.rank
    if situation.trains_adapters and found.max_lora_rank is not None and found.max_lora_rank < rank:
        raise _lacks(f"adapters of training.lora.rank {rank}", f"--max-lora-rank {rank}, not {found.max_lora_rank}")


def _check_base_beside_adapters(found: Found, situation: Situation) -> None:
    """On a CPU vLLM 0.32 answers for the base by an adapter, where both are in one batch: see `in_vllm`."""
    if not situation.serves_adapters or found.weights_label is not None:
        return
    remedy = f"VLLM_SERVER_DEV_MODE=1 in its environment and --worker-extension-cls {EXTENSION}"
    if found.device == "cpu":
        raise _lacks("a base that adapters leave alone, on a CPU", remedy)
    if found.device is None:
        logger.warning("vLLM does not say what it computes on; on a CPU it has to be started with %s", remedy)


def warn_of_another_model(found: Found, config: Config, model: Path) -> None:
    """Say so where a server does not call its model as `model.path` does. `model`: the trainer's own base."""
    if config.training.enabled and found.root is not None and not _is_model(found.root, config.model.path, model):
        logger.warning(
            "vLLM serves the model %s, and the trainer learns on %s (model.path): if they are not the same, what is "
            "learned means nothing there",
            found.root,
            model,
        )


def _is_model(root: str, path: str, directory: Path) -> bool:
    """Whether what a server calls its model is the one that `model.path` names; names are compared, not weights."""
    return root == path or Path(root).expanduser().resolve() == directory.resolve()


def _lacks(what: str, remedy: str, *, instead: str | None = None) -> ConfigError:
    possible = f"vLLM {MADE_FOR}, which this is made for and tested with, can be started so"
    otherwise = "" if instead is None else f"; or {instead}"
    return ConfigError(f"this vLLM lacks {what}: start it with {remedy} ({possible}){otherwise}")


async def _says_what_it_draws_from(api: VllmApi, base: str) -> bool:
    """Whether log-probabilities are those after the temperature: at 2, logits lie half as far apart as at 1."""
    cold, warm = [await _listed(api, base, temperature) for temperature in (1.0, 2.0)]
    common = sorted(set(cold) & set(warm), key=lambda token: cold[token])
    if len(common) < 2:
        raise EngineError("vLLM lists no log-probabilities")
    apart = cold[common[-1]] - cold[common[0]]
    return abs((warm[common[-1]] - warm[common[0]]) - apart / 2) < abs(apart) / 4


async def _listed(api: VllmApi, base: str, temperature: float) -> dict[int, float]:
    """The likeliest next tokens after the same few ids, with their log-probabilities."""
    sampling: dict[str, Any] = {"temperature": temperature, "max_tokens": 1, "logprobs": _LISTED, "seed": 0}
    body = {"model": base, "token_ids": list(_PROBE_IDS), "sampling_params": sampling}
    answer = await api.ask_whole(body)
    try:
        listed = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        return {int(one["token_id"]): float(one["logprob"]) for one in listed}
    except (KeyError, IndexError, TypeError) as error:
        raise EngineError(f"vLLM lists no log-probabilities: {error}") from error
