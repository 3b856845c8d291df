"""Updates under load: what is counted of them, and the whole with a tiny model."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.__main__ import main
from benchmarks.update import (
    AROUND_S,
    SGLANG_ON_CPU,
    Case,
    Turn,
    as_json,
    cases,
    config_of,
    ratios,
    row_of,
    run,
    shortfall,
)
from benchmarks.update_load import (
    AGAIN_S,
    REST_S,
    Observed,
    Pace,
    Rater,
    figures,
    percentile,
    seconds_to_serve,
    whole_updates,
)

from openclaw_rl.evaluation.ledger import Entry, Purpose
from openclaw_rl.models import available_devices, choose_device
from openclaw_rl.store.status import Span
from openclaw_rl.testing.tiny_model import build_tiny_model

PROMISED = {
    *("engine", "kind", "mode", "refused", "broken", "updates"),
    *("gap_ms_publish", "gap_ms_step", "gap_ms_otherwise", "seconds_to_serve"),
}
"""What every row of `--json` has, also one that could not be measured."""


def entry(times: list[float], *, version: int = 0, **values: Any) -> Entry:
    fields: dict[str, Any] = {
        "purpose": Purpose.QUESTION,
        "model": "policy",
        "session": None,
        "question": "",
        "interaction": None,
        "attempt": 1,
        "sent_at": times[0] if times else 0.0,
        "opened_at": times[0] if times else None,
        "ended_at": times[-1] if times else 0.0,
        "finish_reason": "stop",
        **values,
    }
    return Entry(chunk_times=times, version=version, **fields)


def span(name: str, begin: float, end: float, **details: int) -> Span:
    return Span(name=name, started_at=begin, ended_at=end, details=details)


SEEN = Observed(
    entries=(
        entry([0.0, 0.1, 0.3]),
        entry([9.0, 10.5, 11.0, 12.25, 12.75, 13.0]),
        entry([12.5, 12.6], version=1),
        entry([12.25, 12.5], version=1, finish_reason=None, error="broken"),
        entry([], error="HTTP 503"),
    ),
    spans=(span("training_step", 10.0, 11.0, step=1), span("publish", 12.5, 12.7, version=1)),
    served=frozenset({1}),
)


def test_gaps_are_of_publishing_of_the_trainers_work_or_of_neither() -> None:
    found = figures(SEEN)
    assert (found["refused"], found["broken"], found["updates"], found["requests"]) == (1, 1, 1, 5)
    assert found["updates_with_open_stream"] == 1
    assert found["gap_ms_publish"] == 500.0  # 12.25 to 12.75
    assert found["gap_ms_step"] == 1500.0  # 9.0 to 10.5; and 11.0 to 12.25, when the checkpoint is written
    assert found["gap_ms_otherwise"] == 250.0  # 12.75 to 13.0
    assert found["gaps_step"] == 4
    assert ratios(found) == {"publish": 2.0, "step": 6.0}


def test_seconds_to_serve_are_from_the_end_of_the_step_to_the_first_token() -> None:
    assert seconds_to_serve(SEEN) == [1.25]


def test_nothing_seen_is_not_nought() -> None:
    found = figures(Observed(entries=(), spans=()))
    assert found["gap_ms_publish"] is found["gap_ms_step"] is found["seconds_to_serve"] is None
    assert ratios(found) == {"publish": None, "step": None}


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_percentile(share: float, value: float) -> None:
    assert percentile([float(number) for number in range(1, 101)], share) == value


def test_rows() -> None:
    assert len(cases(None, None, None)) == 7
    assert [case.mode for case in cases("embedded", "lora", None)] == ["seamless", "refuse"]
    assert cases("vllm", "lora", "refuse") == [Case(engine="vllm", kind="lora", mode="refuse")]


def arguments(**changed: Any) -> argparse.Namespace:
    values = {
        "model_path": "smollm2",
        "streams": 12,
        "batch_size": 2,
        "niceness": None,
        "set": ["engine.threads=2"],
        **changed,
    }
    return argparse.Namespace(**values)


def test_a_row_is_a_deployment_that_differs_in_words_only(tmp_path: Path) -> None:
    config = config_of(Case(engine="embedded", kind="lora", mode="refuse"), arguments(), tmp_path)
    assert config.serving.on_update == "refuse"
    assert (config.engine.kind, config.engine.max_parallel, config.engine.threads) == ("embedded", 12, 2)
    assert config.rollout.batch_size == 2
    sglang = config_of(Case(engine="sglang", kind="full", mode="seamless"), arguments(), tmp_path)
    on_cpu = choose_device("auto", available_devices()) == "cpu"
    assert set(SGLANG_ON_CPU).issubset(sglang.engine.extra_args) is on_cpu
    assert not sglang.training.use_lora
    assert (config.trainer_niceness, sglang.trainer_niceness) == (10, 0)
    vllm = config_of(Case(engine="vllm", kind="lora", mode="seamless"), arguments(niceness=3), tmp_path)
    assert vllm.trainer_niceness == 3


@pytest.mark.parametrize("mode", ["seamless", "refuse"])
def test_updates_under_load(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(build_tiny_model(tmp_path / "tiny"))
    small = ["--updates", "2", "--streams", "3", "--max-tokens", "40", "--batch-size", "2", "--limit-s", "150"]
    row = ["--engine", "embedded", "--kind", "lora", "--mode", mode, "--model-path", model, "--json"]
    assert main(["update", *row, *small]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found.keys() >= PROMISED
    assert (found["engine"], found["kind"], found["mode"]) == ("embedded", "lora", mode)
    assert found["updates"] >= 2
    assert found["seconds_to_serve"] > 0
    assert found["gap_ms_otherwise"] > 0
    lost = found["refused"] + found["broken"]
    assert lost == 0 if mode == "seamless" else lost > 0


def test_too_few_updates_keep_their_figures_and_say_so() -> None:
    case = Case(engine="sglang", kind="lora", mode="seamless")
    assert row_of(case, {"updates": 19, "refused": 0}, reason="19 of 20") == {
        "engine": "sglang", "kind": "lora", "mode": "seamless", "updates": 19, "refused": 0, "reason": "19 of 20",
    }  # fmt: skip
    assert "reason" not in row_of(case, {"updates": 20}, reason=None)


def test_the_time_is_shared_and_what_a_row_leaves_is_the_next_ones() -> None:
    assert Turn(end=700, rows=7).share_s(now=0, limit_s=900) == 100
    assert Turn(end=700, rows=6).share_s(now=50, limit_s=100) == 100
    assert Turn(end=700, rows=1).share_s(now=705, limit_s=900) == 0


def test_starts_of_later_rows_are_kept_back_and_are_nobodys_share(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[Turn] = []

    def measured(_config: Any, _arguments: Any, turn: Turn) -> dict[str, Any]:
        turns.append(turn)
        return figures(SEEN)

    monkeypatch.setattr("benchmarks.update._measured", measured)
    begin = time.monotonic()
    run(arguments(engine=None, kind="lora", mode="seamless", updates=1, limit_s=900, budget_s=3300))
    kept = [begin + 3300 - turn.end for turn in turns]
    assert [turn.rows for turn in turns] == [3, 2, 1]
    expected = [AROUND_S["vllm"] + AROUND_S["sglang"], AROUND_S["sglang"], 0.0]
    assert kept == pytest.approx(expected, abs=5.0)


def test_a_batch_is_rated_when_the_trainer_has_rested() -> None:
    pace = Pace()
    assert not pace.due(0.0, resting=True, steps=0)
    assert pace.due(REST_S, resting=True, steps=0)
    assert not pace.due(REST_S + 1, resting=True, steps=0)  # that batch is on its way
    assert not pace.due(REST_S + 2, resting=False, steps=1)
    assert not pace.due(20.0, resting=True, steps=1)
    assert pace.due(20.0 + REST_S, resting=True, steps=1)
    assert not pace.due(24.0, resting=True, steps=2)  # a step too quick to be seen
    assert pace.due(24.0 + REST_S, resting=True, steps=2)
    assert pace.due(24.0 + REST_S + AGAIN_S, resting=True, steps=2)  # nothing came of it


def test_what_cannot_be_measured_is_null_with_a_reason() -> None:
    rows = [{"engine": "vllm", "kind": "full", "mode": "seamless", "refused": None, "reason": "it is not here"}]
    assert as_json({"date": "today", "rows": rows}) == [{**rows[0], "date": "today"}]


def test_a_rating_that_fails_is_counted_and_stops_nobody() -> None:
    def hiccup(request: httpx.Request) -> httpx.Response:
        if b'"a"' in request.content:
            raise httpx.ConnectError("gone")
        return httpx.Response(503 if b'"b"' in request.content else 200)

    async def rated() -> int:
        async with httpx.AsyncClient(transport=httpx.MockTransport(hiccup), base_url="http://gateway/v1") as client:
            rater = Rater(client)
            rater.wanted = 3
            for turn_id in ("a", "b", "c", "b"):
                await rater.rate(entry([0.0], turn_id=turn_id, text="short"))
            return rater.failed

    assert asyncio.run(rated()) == 2
    assert figures(Observed(entries=(), spans=(), ratings_failed=2))["ratings_failed"] == 2


def test_whatever_ends_a_row_the_rows_before_it_are_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def measured(config: Any, *_: Any, **__: Any) -> dict[str, Any]:
        if config.serving.on_update == "refuse":
            raise ExceptionGroup("of readers", [RuntimeError("a cable was pulled")])
        return figures(SEEN)

    monkeypatch.setattr("benchmarks.update._measured", measured)
    chosen = arguments(engine="embedded", kind="lora", mode=None, updates=1, limit_s=1, budget_s=9)
    kept, lost = as_json(run(chosen))
    assert kept.keys() >= PROMISED
    assert lost.keys() >= PROMISED
    assert kept["updates"] == 1
    assert lost["updates"] is None
    assert "of readers" in lost["reason"]
    assert "a cable was pulled" in caplog.text  # with its traceback


def test_an_update_is_a_version_that_serves_and_no_mere_try() -> None:
    refused = span("publish", 13.0, 14.0, version=2)
    found = figures(dataclasses.replace(SEEN, spans=(*SEEN.spans, refused)))
    assert (found["updates"], found["updates_with_open_stream"]) == (1, 1)


def test_a_try_to_publish_that_failed_is_publishing_too() -> None:
    failed = span("publish", 12.0, 12.2, version=1)
    spans = (SEEN.spans[0], failed, SEEN.spans[1])
    step = next(span for span in whole_updates(spans) if span.name == "training_step")
    assert step.ended_at == 12.0  # where the first try begins
    found = figures(dataclasses.replace(SEEN, spans=spans))
    assert found["gap_ms_publish"] == 1250.0  # 11.0 to 12.25, which was the trainer's work before


def test_no_stream_at_one_try_is_a_reason() -> None:
    unseen = span("publish", 30.0, 31.0, version=1)
    found = figures(dataclasses.replace(SEEN, spans=(*SEEN.spans, unseen)))
    assert (found["updates"], found["updates_with_open_stream"]) == (1, 0)
    assert shortfall(found, wanted=1, took_s=9) == "no stream was open at the publication of 1 of 1 updates"
    assert shortfall(found, wanted=2, took_s=9) == (
        "1 of 2 updates in 9 s; no stream was open at the publication of 1 of 1 updates"
    )
    assert shortfall(figures(SEEN), wanted=1, took_s=9) is None


def test_the_silence_before_a_reader_hangs_up_is_a_gap() -> None:
    silent = entry([20.0, 20.1], finish_reason=None, error="hung up by the client", cancelled=True, ended_at=50.1)
    found = figures(dataclasses.replace(SEEN, entries=(*SEEN.entries, silent)))
    assert (found["broken"], found["hung_up"], found["gap_ms_otherwise"]) == (1, 1, 30000.0)
