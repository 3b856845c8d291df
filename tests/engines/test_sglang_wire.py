"""The pure parts of the SGLang adapter: bodies, pieces of answers, versions of tokens, and what a server lacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.config import Config
from openclaw_rl.policy_files import WeightsKind
from openclaw_rl.serving.engines.protocol import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
    UnknownVersion,
)
from openclaw_rl.serving.engines.requirements import Situation
from openclaw_rl.serving.engines.sglang import wire
from openclaw_rl.serving.engines.sglang.requirements import another_model, unmet
from openclaw_rl.types import FinishReason, PolicyVersion, SamplingParams, VersionState

VOCABULARY = 1000
LIMITS = wire.Limits(context_length=64, kept_tokens=100)


def piece(
    ids: Sequence[int],
    total: int,
    *,
    logprobs: Sequence[float | None] | None = None,
    mask: Sequence[Sequence[int]] | None = None,
    finish: dict[str, Any] | None = None,
    **meta: Any,
) -> dict[str, Any]:
    """A piece as SGLang 0.5.23 sends it: `total` tokens so far, of which it repeats those in `ids`."""
    said = [-0.5 - token / 100 for token in ids] if logprobs is None else logprobs
    about: dict[str, Any] = {
        "id": "r",
        "finish_reason": finish,
        "prompt_tokens": 7,
        "completion_tokens": total,
        "weight_version": "default",
        "output_token_logprobs": [[logprob, token, None] for logprob, token in zip(said, ids, strict=True)],
        **meta,
    }
    if mask is not None:
        about["output_token_sampling_mask"] = mask
        about["output_token_sampling_logprobs"] = [-0.1] * len(mask)
    return {"text": "…", "output_ids": list(ids), "meta_info": about}


def body_of(
    sampling: SamplingParams, *, adapter: str | None = None, salt: str | None = None, prompt: int = 4
) -> dict[str, Any]:
    return wire.generate_body(
        range(prompt),
        sampling,
        rid="r",
        limits=LIMITS,
        end_tokens=[2],
        vocabulary=VOCABULARY,
        adapter=adapter,
        salt=salt,
    )


# --- what is asked -----------------------------------------------------------------------------------------


def test_an_answer_never_outgrows_the_context() -> None:
    body = body_of(SamplingParams(max_tokens=1000), prompt=60)
    assert body["sampling_params"]["max_new_tokens"] == 4
    assert body["sampling_params"]["stop_token_ids"] == [2]


def test_an_adapter_is_asked_for_by_name_and_the_base_by_none() -> None:
    assert "lora_path" not in body_of(SamplingParams(max_tokens=1))
    assert body_of(SamplingParams(max_tokens=1), adapter="policy-v12-0a")["lora_path"] == "policy-v12-0a"
    assert body_of(SamplingParams(max_tokens=1), salt="policy-v3.aa")["extra_key"] == "policy-v3.aa"


@pytest.mark.parametrize(
    ("sampling", "top_k", "told"),
    [
        ({}, -1, False),
        ({"top_p": 0.9}, 50, True),  # a nucleus is bounded, so that it can be told
        ({"top_k": 5}, 5, True),
        ({"top_k": 50, "top_p": 0.5}, 50, True),
        ({"top_k": 51}, 51, False),  # honoured as it is; its sets could be too large to be told
        ({"top_k": 1}, 1, False),
        ({"top_k": VOCABULARY}, -1, False),
        ({"top_p": 0.9, "temperature": 0.0}, -1, False),
    ],
)
def test_kept_sets_are_asked_for_where_they_are_bounded(sampling: dict[str, Any], top_k: int, told: bool) -> None:
    body = body_of(SamplingParams(**{"max_tokens": 1, **sampling}))
    assert body["sampling_params"]["top_k"] == top_k
    assert body.get("return_sampling_mask", False) is told


def test_without_a_seed_two_answers_have_two_seeds() -> None:
    """A server with deterministic inference takes one and the same where it is given none."""
    seeds = {body_of(SamplingParams(max_tokens=1))["sampling_params"]["sampling_seed"] for _ in range(5)}
    assert len(seeds) > 1
    assert body_of(SamplingParams(max_tokens=1, seed=7))["sampling_params"]["sampling_seed"] == 7
    assert 0 <= body_of(SamplingParams(max_tokens=1, seed=-1))["sampling_params"]["sampling_seed"] < 2**63


def test_a_score_starts_at_the_token_before_the_first() -> None:
    body = wire.score_body((5, 6, 7, 8), 2, rid="r", adapter=None, salt=None)
    assert body["logprob_start_len"] == 1
    assert body["sampling_params"]["max_new_tokens"] == 0


# --- what is answered --------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=30), st.lists(st.integers(1, 5), max_size=10), st.booleans())
def test_however_an_answer_is_cut_its_pieces_are_the_whole(ids: list[int], cuts: list[int], repeats: bool) -> None:
    """Both ways of streaming: all tokens so far in each piece, or the new ones only."""
    taken: list[int] = []
    seen = 0
    for size in [*cuts, len(ids)]:
        until = min(len(ids), seen + size)
        chunk = wire.chunk_of(piece(ids[:until] if repeats else ids[seen:until], until), seen, VOCABULARY)
        assert chunk.logprobs == tuple(-0.5 - token / 100 for token in chunk.ids)
        taken += chunk.ids
        seen = until
    assert taken == ids


@pytest.mark.parametrize(
    "broken",
    [
        {},
        piece([1, 2], 5),
        piece([1], 0),
        {**piece([1], 1), "output_ids": [2]},
        piece([1, 2], 2, output_token_logprobs=[[-1.0, 2, None]]),
        piece([1], 1, completion_tokens=None),
    ],
)
def test_a_piece_that_does_not_add_up_is_an_error(broken: dict[str, Any]) -> None:
    with pytest.raises(EngineError):
        wire.chunk_of(broken, 0, VOCABULARY)


def test_a_logprob_that_is_none_or_all_tokens_have_is_missing() -> None:
    uniform = -math.log(VOCABULARY)
    chunk = wire.chunk_of(piece([1, 2, 3, 4], 4, logprobs=[None, math.nan, uniform, -6.9]), 0, VOCABULARY)
    assert chunk.logprobs == (None, None, None, -6.9)


def test_of_a_cut_distribution_the_logprob_is_that_among_the_kept() -> None:
    chunk = wire.chunk_of(piece([3, 4], 2, mask=[[3, 9], [4]]), 0, VOCABULARY)
    assert chunk.kept == ((3, 9), (4,))
    assert chunk.logprobs == (-0.1, -0.1)


def test_how_answers_end() -> None:
    def reason(finish: dict[str, Any]) -> FinishReason | None:
        return wire.chunk_of(piece([1], 1, finish=finish), 0, VOCABULARY).reason

    assert reason({"type": "stop", "matched": 2}) is FinishReason.STOP
    assert reason({"type": "length", "length": 1}) is FinishReason.LENGTH
    assert reason({"type": "abort", "message": "Aborted", "status_code": None}) is FinishReason.ABORT
    with pytest.raises(EngineUnavailable):
        reason({"type": "abort", "message": "out of memory", "status_code": 503})


def test_who_drew_a_token_comes_from_the_spans() -> None:
    spans = [wire.Span(name="default", start=0, end=2), wire.Span(name="policy-v3.0af1", start=2, end=5)]
    known = {"default": 0, "policy-v3.0af1": 3}
    assert wire.drawers_of(spans, 5, known) == ("default",) * 2 + ("policy-v3.0af1",) * 3
    assert wire.drawers_of(spans, 3, known) == ("default",) * 2 + ("policy-v3.0af1",)
    for wrong in (spans[:1], spans[1:], spans[::-1]):
        with pytest.raises(EngineError):
            wire.drawers_of(wrong, 5, known)
    with pytest.raises(EngineError, match="somebody else"):
        wire.drawers_of(spans, 5, {"default": 0})


def test_names_hold_what_they_name_and_those_of_weights_are_new_each_time() -> None:
    version = PolicyVersion(version=12, state=VersionState.CANDIDATE, path="x", step=1, created_at=0.0)
    assert wire.adapter_name(version, "a" * 64) != wire.adapter_name(version, "b" * 64)
    names = {wire.weights_name(version, "a" * 64) for _ in range(3)}
    assert len(names) == 3
    assert all(wire.is_of(name, version, "a" * 64) for name in names)
    assert not any(wire.is_of(name, version, "b" * 64) for name in names)
    first = PolicyVersion(version=1, state=VersionState.CANDIDATE, path="x", step=1, created_at=0.0)
    assert not any(wire.is_of(name, first, "a" * 64) for name in names)


def test_scores_are_of_the_tokens_that_were_asked() -> None:
    pairs = [[None, 5, None], [-1.0, 6, None], [-2.0, 7, None]]
    assert wire.scores_of({"meta_info": {"input_token_logprobs": pairs}}, (4, 5, 6, 7), 2) == (-1.0, -2.0)
    with pytest.raises(EngineError, match="other tokens"):
        wire.scores_of({"meta_info": {"input_token_logprobs": pairs}}, (4, 5, 6, 8), 2)
    with pytest.raises(EngineError, match="not finite"):
        wire.scores_of({"meta_info": {"input_token_logprobs": [[None, 7, None]]}}, (6, 7), 1)


def test_adapters_are_those_that_have_a_parent() -> None:
    cards = [
        {"id": "/models/base", "max_model_len": 512, "parent": None},
        {"id": "policy-v3", "parent": "/models/base", "max_model_len": None},
        {"id": "someone", "parent": "/models/base", "max_model_len": None},
    ]
    assert wire.models_of({"data": cards}) == wire.Models(
        context_length=504, adapters=frozenset({"policy-v3", "someone"})
    )
    with pytest.raises(EngineError):
        wire.models_of({"data": []})


def test_a_restart_is_another_instance() -> None:
    info = {"startup_time": {"load": 1.234567}, "random_seed": 4, "port": 1}
    assert wire.instance_of(info) == wire.instance_of(dict(info))
    assert wire.instance_of(info) != wire.instance_of({**info, "random_seed": 5})
    assert wire.instance_of(info) != wire.instance_of({**info, "startup_time": {"load": 1.234568}})


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"error": {"message": "Input length (9 tokens) exceeds the maximum allowed length"}}, 400, None),
        ({"error": {"message": "The input (9 tokens) is longer than the model's context length"}}, 400, None),
        ({"error": {"message": "Got LoRA adapter that has never been loaded: policy-v9"}}, 400, UnknownVersion),
        ({"error": {"message": "The request queue is full.", "code": 503}}, 200, EngineOverloaded),
        ({"detail": "shutting down"}, 503, EngineUnavailable),
        ({"success": False, "error_message": "already loaded"}, 400, InvalidEngineRequest),
        ({"message": "boom"}, 500, EngineError),
    ],
)
def test_errors_are_told_apart(body: dict[str, Any], status: int, kind: type[EngineError] | None) -> None:
    error = wire.error_of(body, status)
    if kind is None:
        assert isinstance(error, InvalidEngineRequest)
        assert (error.param, error.code) == ("messages", "context_length_exceeded")
    else:
        assert type(error) is kind


# --- what a server lacks -----------------------------------------------------------------------------------

FIT = {
    "version": "0.5.23",
    "enable_lora": True,
    "max_lora_rank": 16,
    "lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
CONTEXT = 100


def lacks(info: dict[str, Any], config: Config | None = None, in_service: WeightsKind | None = None) -> list[str]:
    return unmet(info, Situation(config=config or Config(), in_service=in_service), context=CONTEXT)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"version": "0.5.9"}, "0.5.23"),
        ({"version": None}, "0.5.23"),
        ({"enable_lora": None}, "--enable-lora"),
        ({"max_lora_rank": 8}, "--max-lora-rank"),
        ({"lora_target_modules": ["q_proj"]}, "down_proj"),
        ({"skip_tokenizer_init": True}, "--skip-tokenizer-init"),
    ],
)
def test_what_a_server_lacks_is_named(changed: dict[str, Any], named: str) -> None:
    assert lacks(FIT) == []
    (sentence,) = lacks({**FIT, **changed})
    assert named in sentence
    assert "tested with" in sentence
    assert "0.5.23" in sentence, "the version that has it"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"disable_overlap_schedule": False}, "--disable-overlap-schedule"),
        ({"pp_size": 2}, "--pp-size"),
        ({"enable_pdmux": True}, "--enable-pdmux"),
    ],
)
def test_what_is_in_the_way_of_swaps_is_named_where_there_will_be_some(changed: dict[str, Any], named: str) -> None:
    trained = Config.model_validate({"training": {"use_lora": False, "lr": 1e-5}})
    fit = {**FIT, "disable_overlap_schedule": True, "pp_size": 1, "enable_pdmux": False}
    assert lacks({**fit, **changed}) == []
    for config, in_service in ((trained, None), (Config(), WeightsKind.FULL)):
        assert lacks(fit, config, in_service) == []
        (sentence,) = lacks({**fit, **changed}, config, in_service)
        assert named in sentence


@pytest.mark.parametrize("training", [{"enabled": False}, {"use_lora": False, "lr": 1e-5}])
def test_who_does_not_train_adapters_needs_none(training: dict[str, Any]) -> None:
    config = Config.model_validate({"training": training})
    fit = {**FIT, "disable_overlap_schedule": True}
    assert lacks({**fit, "enable_lora": False}, config) == []
    assert lacks({**fit, "version": "0.6.0.post1", "lora_target_modules": ["all"]}) == []
    (sentence,) = lacks({**fit, "enable_lora": False}, config, WeightsKind.LORA)
    assert "the adapters of this run_dir" in sentence
    assert lacks({**fit, "max_lora_rank": 1}, config, WeightsKind.LORA) == [], "whoever made it knows its rank"


def test_owners_need_adapters_also_where_nothing_is_trained() -> None:
    config = Config.model_validate({"training": {"enabled": False}, "policies": {"per": "user"}})
    (sentence,) = lacks({**FIT, "enable_lora": False}, config)
    assert "--enable-lora" in sentence


def test_a_shorter_context_than_is_asked_for_is_named() -> None:
    (sentence,) = lacks({**FIT, "context_length": CONTEXT - 1})
    assert "--context-length" in sentence
    assert lacks({**FIT, "context_length": CONTEXT}) == []


def test_another_model_than_the_trainers_is_seen_by_its_name(tmp_path: Path) -> None:
    assert another_model({"model_path": "smollm2"}, "smollm2", tmp_path) is None
    assert another_model({"model_path": str(tmp_path / "." / "")}, "smollm2", tmp_path) is None
    assert another_model({}, "smollm2", tmp_path) is None
    assert another_model({"model_path": "Qwen/Qwen3-4B"}, "smollm2", tmp_path) == "Qwen/Qwen3-4B"
