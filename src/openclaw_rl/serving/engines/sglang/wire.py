"""SGLang's HTTP in our terms: what is asked, and what the answers mean. Pure.

Written for SGLang 0.5.23. Three things there are not as one would guess:

- A chunk of a stream carries all tokens so far, or (`--incremental-streaming-output`) the new ones only. Both end
  with the new ones, and `completion_tokens` tells how many those are.
- The log-probability of a drawn token is that of the whole distribution at the request's temperature, before top-p
  and top-k. The one among the kept tokens, and which those are, comes with `return_sampling_mask`.
- Only the last chunk says which weights drew which token (`weight_versions`). `weight_version` of a chunk is what the
  server has loaded by then, which may be newer than what drew the chunk's tokens, never older.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.serving.engines.protocol import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
    UnknownVersion,
)
from openclaw_rl.types import FinishReason, PolicyVersion, SamplingParams

Json = dict[str, Any]

RESERVED_TOKENS = 8
"""Of its context SGLang keeps a few tokens to itself: a prompt is at least seven shorter, and with its answer two."""
UNTOUCHED = "default"
"""What SGLang calls the weights that it was started with."""
_DIGITS = 12
"""Of a digest in a name."""
_SERVICE_UNAVAILABLE = 503
_KEY_REFUSED = frozenset({401, 403})
_ALIKE = 4e-6
"""How near to that of a uniform distribution a log-probability is taken for it: a few steps of fp32 at its size."""


# --- names -------------------------------------------------------------------------------------------------


def adapter_name(version: PolicyVersion, digest: str) -> str:
    """What SGLang is told to call a LoRA version: by its number and what it holds, so never another's name.

    `digest` is of its manifest. Of two deployments on one server each has a version 1.
    """
    return f"{version.name}-{digest[:_DIGITS]}"


def weights_name(version: PolicyVersion, digest: str) -> str:
    """A name for whole weights, new at each loading: what was cached under an earlier one is not found again."""
    return f"{adapter_name(version, digest)}.{secrets.token_hex(4)}"


def is_of(name: str, version: PolicyVersion, digest: str) -> bool:
    """Whether weights called `name` are those of `version`, whoever loaded them."""
    return name.startswith(adapter_name(version, digest) + ".")


# --- what is asked -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a server allows: tokens of prompt and answer together, and of a kept set that it tells of (0: none)."""

    context_length: int
    kept_tokens: int


def generate_body(
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    rid: str,
    limits: Limits,
    end_tokens: Sequence[int],
    vocabulary: int,
    adapter: str | None,
    salt: str | None,
) -> Json:
    """The body of POST /generate for one streamed answer.

    `adapter`: the name of the LoRA version, None for the server's own weights. `salt`: prefixes are shared only
    within one.
    """
    top_k, kept = _top_k(sampling, limits.kept_tokens, vocabulary)
    body: Json = {
        "rid": rid,
        "input_ids": list(prompt),
        "stream": True,
        "return_logprob": True,
        "sampling_params": {
            "max_new_tokens": min(sampling.max_tokens, limits.context_length - len(prompt)),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": top_k,
            "stop": list(sampling.stop),
            "stop_token_ids": list(end_tokens),
            "sampling_seed": secrets.randbits(31) if sampling.seed is None else sampling.seed & (2**63 - 1),
        },
    }
    if kept:
        body["return_sampling_mask"] = True
    return body | _identity(adapter, salt)


def _top_k(sampling: SamplingParams, kept_tokens: int, vocabulary: int) -> tuple[int, bool]:
    """SGLang's top_k (-1: no limit), and whether kept sets are asked for.

    It tells of sets that a top_k bounds only, so a nucleus gets half the bound: ties could make it larger, and a set
    over the bound ends the answer with an error. A top_k beyond that is honoured, and its sets are not told.
    """
    bound = kept_tokens // 2
    wanted = sampling.top_k if 0 < sampling.top_k < vocabulary else 0
    if sampling.temperature == 0.0 or not (wanted or sampling.top_p < 1.0):
        return -1, False
    if bound < 2 or wanted > bound or wanted == 1:
        return wanted or -1, False
    return wanted or bound, True


def score_body(ids: Sequence[int], start: int, *, rid: str, adapter: str | None, salt: str | None) -> Json:
    """The body of POST /generate that draws nothing and scores `ids` from `start` on."""
    body: Json = {
        "rid": rid,
        "input_ids": list(ids),
        "stream": False,
        "return_logprob": True,
        "logprob_start_len": start - 1,
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
    }
    return body | _identity(adapter, salt)


def _identity(adapter: str | None, salt: str | None) -> Json:
    """Whose weights answer, and with whom computed prefixes are shared."""
    named = {} if adapter is None else {"lora_path": adapter}
    return named | ({} if salt is None else {"extra_key": salt})


# --- what is answered --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """The weights called `name` drew the tokens from `start` to before `end`."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """What is new in one piece of an answer. `reason` and `spans` come with the last."""

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    kept: tuple[tuple[int, ...], ...] | None
    prompt_tokens: int
    completion_tokens: int
    weights: str
    reason: FinishReason | None
    spans: tuple[Span, ...]


def chunk_of(body: Mapping[str, Any], seen: int, vocabulary: int) -> Chunk:
    """Read a piece of an answer of which `seen` tokens came before.

    Where the model gives NaN, SGLang draws from all of the `vocabulary` alike: that is no log-probability.

    Raises:
        EngineError: it is an error, or does not add up.
    """
    if "error" in body:
        raise error_of(body, 400)
    try:
        meta = body["meta_info"]
        reason = _finish_reason(meta["finish_reason"])
        total = int(meta["completion_tokens"])
        ids = body["output_ids"]
        new = total - seen
        if new < 0 or len(ids) not in {new, total}:
            raise ValueError(f"{len(ids)} ids, {total} tokens, {seen} seen")
        mask = meta.get("output_token_sampling_mask")
        pairs = _last(meta["output_token_logprobs"], new)
        logprobs = tuple(_of_distribution(_number(pair[0]), vocabulary) for pair in pairs)
        kept = None
        if mask is not None:
            kept = tuple(tuple(int(one) for one in tokens) for tokens in _last(mask, new))
            among = [_number(value) for value in _last(meta["output_token_sampling_logprobs"], new)]
            logprobs = tuple(None if whole is None else cut for whole, cut in zip(logprobs, among, strict=True))
        drawn = tuple(int(token) for token in _last(ids, new))
        if tuple(int(pair[1]) for pair in pairs) != drawn:
            raise ValueError("the log-probabilities are of other tokens")
        return Chunk(
            ids=drawn,
            logprobs=logprobs,
            kept=kept,
            prompt_tokens=int(meta["prompt_tokens"]),
            completion_tokens=total,
            weights=str(meta["weight_version"]),
            reason=reason,
            spans=tuple(
                Span(name=str(span["version"]), start=int(span["start"]), end=int(span["end"]))
                for span in meta.get("weight_versions") or ()
            ),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EngineError(f"SGLang sent a broken piece of an answer: {error}") from error


def _last(values: Sequence[Any], count: int) -> Sequence[Any]:
    """The last `count` of them, which must be there."""
    if count > len(values):
        raise ValueError(f"{len(values)} values for {count} tokens")
    return values[len(values) - count :]


def _number(value: Any) -> float | None:
    """A log-probability; None where there is none, or no number."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _of_distribution(logprob: float | None, vocabulary: int) -> float | None:
    """None for the log-probability that all tokens have where the model gave no numbers."""
    if logprob is not None and abs(logprob + math.log(vocabulary)) < _ALIKE:
        return None
    return logprob


def _finish_reason(reason: Any) -> FinishReason | None:
    if reason is None:
        return None
    kind = reason["type"]
    if kind == "abort":
        if reason.get("status_code"):
            raise _as_error(str(reason.get("message")), int(reason["status_code"]))
        return FinishReason.ABORT
    return FinishReason.LENGTH if kind == "length" else FinishReason.STOP


def drawers_of(spans: Sequence[Span], count: int, known: Mapping[str, int]) -> tuple[str, ...]:
    """The name of the weights that drew each of `count` tokens; `known` has those that we know.

    Raises:
        EngineError: the spans do not cover them, each once; or the weights have a name that we did not give.
    """
    names: list[str] = []
    for span in spans:
        if span.start != len(names) or span.end < span.start:
            raise EngineError("SGLang's spans of weight versions do not follow one another")
        if span.name not in known:
            raise EngineError(f"SGLang serves weights that somebody else loaded: {span.name[:80]!r}")
        names += [span.name] * (span.end - span.start)
    if len(names) < count:
        raise EngineError(f"SGLang tells the weights of {len(names)} tokens out of {count}")
    return tuple(names[:count])


def scores_of(body: Mapping[str, Any], ids: Sequence[int], start: int) -> tuple[float, ...]:
    """The log-probabilities of `ids` from `start` on.

    Raises:
        EngineError: they are not all there, or are of other tokens.
    """
    if "error" in body:
        raise error_of(body, 400)
    try:
        pairs = _last(body["meta_info"]["input_token_logprobs"], len(ids) - start)
        values = [_number(pair[0]) for pair in pairs]
        if tuple(int(pair[1]) for pair in pairs) != tuple(ids[start:]):
            raise ValueError("the log-probabilities are of other tokens")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EngineError(f"SGLang sent a broken score: {error}") from error
    if any(value is None for value in values):
        raise EngineError("the model's logits are not finite")
    return tuple(value for value in values if value is not None)


def scorer_of(body: Mapping[str, Any]) -> str:
    """What the server called its own weights when it had scored.

    Raises:
        EngineError: it does not say.
    """
    try:
        return str(body["meta_info"]["weight_version"])
    except (KeyError, TypeError) as error:
        raise EngineError(f"SGLang sent a broken score: {error}") from error


# --- the server --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Models:
    """What /v1/models lists: the tokens that prompt and answer may have together, and the names of the adapters."""

    context_length: int
    adapters: frozenset[str]


def models_of(body: Mapping[str, Any]) -> Models:
    """Read the answer to GET /v1/models.

    Raises:
        EngineError: it is none.
    """
    try:
        cards = body["data"]
        return Models(
            context_length=int(cards[0]["max_model_len"]) - RESERVED_TOKENS,
            adapters=frozenset(str(card["id"]) for card in cards if card.get("parent")),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EngineError(f"SGLang's list of models cannot be read: {error}") from error


def load_of(body: Mapping[str, Any]) -> tuple[int, int]:
    """Running and waiting requests, from the answer to GET /v1/loads.

    Raises:
        EngineError: it is none.
    """
    try:
        loads = body["loads"]
        return (
            sum(int(one["num_running_reqs"]) for one in loads),
            sum(int(one["num_waiting_reqs"]) for one in loads),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"SGLang's load cannot be read: {error}") from error


def instance_of(info: Mapping[str, Any]) -> str:
    """What tells one start of a server from the next, from the answer to GET /server_info.

    SGLang has no name for it; how long each part of its start took (in fractions of a microsecond) and the seed that
    it drew never come twice.
    """
    marks = repr((info.get("startup_time"), info.get("random_seed"), info.get("port")))
    return hashlib.sha256(marks.encode()).hexdigest()[:32]


# --- errors ------------------------------------------------------------------------------------------------


def error_of(body: Mapping[str, Any], status: int) -> EngineError:
    """The error in an answer that is no success; SGLang has four forms of it."""
    error = body.get("error", body)
    if isinstance(error, Mapping):
        code = error.get("code")
        status = code if isinstance(code, int) and not isinstance(code, bool) else status
        message = error.get("message") or error.get("error_message") or error.get("detail") or "no reason given"
    else:
        message = error
    return _as_error(str(message), status)


def _as_error(message: str, status: int) -> EngineError:
    if "never been loaded" in message or "are not loaded" in message:
        return UnknownVersion("SGLang has not loaded this policy version", param="model")
    if "context length" in message or "maximum allowed length" in message:
        return InvalidEngineRequest(message, param="messages", code="context_length_exceeded")
    if "queue is full" in message:
        return EngineOverloaded("SGLang's queue is full")
    if status in _KEY_REFUSED:  # nobody's request is to blame, nor any version
        return EngineError(f"SGLang refuses the key, engine.api_key: {message}")
    if status >= _SERVICE_UNAVAILABLE:
        return EngineUnavailable(f"SGLang cannot answer now: {message}")
    if status < 500:
        return InvalidEngineRequest(f"SGLang refuses: {message}")
    return EngineError(f"SGLang failed: {message}")
