"""What a vLLM server can do, found out by asking it: an engine that lacks something says so at the start, by name."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.serving.engines.protocol import EngineError
from openclaw_rl.serving.engines.vllm import wire
from openclaw_rl.serving.engines.vllm.api import RPC, VllmApi

_PROBE_IDS = (1, 2, 3, 4)
_LISTED = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A server that will do. `context`: its longest sequence (tokens); `base`: its name for the model itself.

    `weights_label`: what it calls the weights it has now, None where it cannot swap them; that takes its routes for
    developers and our extension of its workers.
    """

    base: str
    context: int
    weights_label: str | None


async def check_server(api: VllmApi) -> Found:
    """Ask a server that answers for everything that we need of it.

    Raises:
        ConfigError: it lacks something; the message names the argument that it must be started with.
        EngineError: it does not answer as vLLM does.
    """
    card = next((card for card in await api.models() if not card.get("parent")), None)
    if card is None:
        raise EngineError("vLLM names no model")
    base = str(card["id"])
    one = {"model": base, "token_ids": list(_PROBE_IDS), "sampling_params": {"max_tokens": 1}}
    if await api.status_of("POST", wire.GENERATE, one) != HTTPStatus.OK:
        raise _lacks("the route for tokens in, tokens out", "--enable-scale-out, vLLM 0.32 or newer")
    if await api.status_of("GET", "/v1/load_lora_adapter") != HTTPStatus.METHOD_NOT_ALLOWED:  # it takes POST
        raise _lacks("loading adapters", "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment")
    if not await _says_what_it_draws_from(api, base):
        raise _lacks("log-probabilities at the temperature of sampling", "--logprobs-mode processed_logprobs")
    developer = await api.status_of("GET", "/weight_info") == HTTPStatus.OK
    extended = developer and await api.status_of("POST", RPC, {"method": "openclaw_present"}) == HTTPStatus.OK
    return Found(
        base=base,
        context=int(card["max_model_len"]),
        weights_label=await api.weights_label() if extended else None,
    )


def _lacks(what: str, remedy: str) -> ConfigError:
    return ConfigError(f"this vLLM lacks {what}: start it with {remedy}")


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
