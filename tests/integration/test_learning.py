"""Engine, gateway, rollout, judge and trainer at work together, seen by a client: nothing breaks when it learns."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.cli import main
from openclaw_rl.store.status import Span
from openclaw_rl.supervision.status import Condition, LoopReport, collect
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.checkpoint import load_checkpoint
from openclaw_rl.training.loop import load_trainer
from openclaw_rl.training.scorer import Mode
from openclaw_rl.types import LoopName, TokenRecord
from tests.integration.conftest import Living
from tests.integration.support import QUESTION, LongStreams, ask, react, stream, user
from tests.supervision.waiting import eventually


def teach(living: Living) -> set[str]:
    """Two reactions, which make a batch; the turns that they are about."""
    return {react(living.client, QUESTION, "[bad]"), react(living.client, QUESTION, "[good]")}


def served(living: Living, version: int) -> bool:
    return living.store.versions.serving().version == version


def tokens_of(living: Living, turn_id: str) -> TokenRecord:
    turn = living.store.turns.get(turn_id)
    assert turn is not None
    return turn.tokens


def trainer_report(living: Living) -> LoopReport:
    return next(loop for loop in collect(living.deployment.config.run_dir).loops if loop.loop == "training")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_streamed_answer_equals_the_whole_one_for_the_same_seed(living: Living, temperature: float) -> None:
    options: dict[str, Any] = {"seed": 11, "temperature": temperature, "max_tokens": 40}
    whole = ask(living.client, [user(QUESTION)], **options)
    streamed = stream(living.client, [user(QUESTION)], **options)
    assert streamed.text == whole.text != ""
    assert streamed.finish_reason == whole.finish_reason
    one, two = (tokens_of(living, answer.turn_id) for answer in (streamed, whole))
    assert (one.prompt_ids, one.response_ids) == (two.prompt_ids, two.response_ids)
    # The second answer reads its prompt from the first one's memory: the same numbers in another order of addition.
    assert one.logprobs == pytest.approx(two.logprobs, abs=1e-4)
    other = ask(living.client, [user(QUESTION)], **{**options, "seed": 12})
    assert (other.text == whole.text) is (temperature == 0.0)


def test_streams_go_on_through_a_publish_and_the_next_request_gets_the_new_version(living: Living) -> None:
    before = living.store.versions.serving().version
    streams = LongStreams(living.client)
    streams.start()
    assert streams.begun.wait(30)
    teach(living)
    eventually(lambda: served(living, before + 1), "the new version serves")
    # The gateway looks ten times a second; from the first answer of the new version on there is no way back.
    eventually(lambda: ask(living.client, [user(QUESTION)], max_tokens=2).version == before + 1, "it answers")
    assert [ask(living.client, [user(QUESTION)], max_tokens=2).version for _ in range(3)] == [before + 1] * 3
    answers = streams.finish()
    (publish,) = (span for span in living.store.status.spans("publish") if span.details["version"] == before + 1)
    through = [answer for answer in answers if _holds(answer.began_at, publish, answer.ended_at)]
    assert through, "no stream was open during the publish"
    for answer in through:
        versions = tokens_of(living, answer.turn_id).versions
        assert set(versions) == {answer.version} == {before}
        assert len(versions) > 100


def _holds(began_at: float, span: Span, ended_at: float) -> bool:
    assert span.ended_at is not None
    return began_at < span.started_at and span.ended_at < ended_at


def test_the_trainer_gives_a_recorded_turn_the_log_probabilities_of_the_engine(living: Living) -> None:
    version = living.store.versions.serving().version + 1
    teach(living)
    eventually(lambda: served(living, version), "the new version serves")
    answer = eventually(lambda: _answer_of(living, version), "the new version answers")
    tokens = tokens_of(living, answer)
    assert set(tokens.versions) == {version}

    trainer = load_trainer(living.deployment.config)
    trainer.restore(load_checkpoint(_checkpoint(living, version)))
    sequence = TokenSequence(prompt_ids=tokens.prompt_ids, response_ids=tokens.response_ids, start=0)
    engine = torch.tensor(tokens.logprobs)
    own = trainer.scorer.score(sequence, Mode.STUDENT, temperature=0.7).logprobs
    base = trainer.scorer.score(sequence, Mode.REFERENCE, temperature=0.7).logprobs
    assert (engine - own).abs().mean() < 1e-3
    assert (engine - base).abs().mean() > 1e-2  # the version is not the base, so the line above says something


def _answer_of(living: Living, version: int) -> str | None:
    answer = ask(living.client, [user("What is salt?")], temperature=0.7, max_tokens=32)
    return answer.turn_id if answer.version == version else None


def _checkpoint(living: Living, step: int) -> Path:
    return Path(next(record.checkpoint for record in living.store.samples.steps() if record.step == step))


def test_killing_the_trainer_in_a_step_stops_no_conversation_and_loses_no_sample(
    living: Living, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, store = living.deployment.config.run_dir, living.store
    committed = len(store.samples.steps())
    teach(living)
    eventually(lambda: served(living, committed + 1), "a step is committed and served")
    eventually(lambda: ask(living.client, [user(QUESTION)], max_tokens=2).version == committed + 1, "it answers")
    victim = living.deployment.pids()[LoopName.TRAINING]

    streams = LongStreams(living.client, once=True)
    streams.start()
    assert streams.begun.wait(30)
    taught = teach(living)
    in_step = f"training step {committed + 2}: "
    eventually(lambda: trainer_report(living).text.startswith(in_step), "the trainer is in a step")
    os.kill(victim, signal.SIGKILL)
    assert store.status.counts().samples_by_state.get("claimed") == 2

    told = eventually(lambda: _told(run_dir, capsys, Condition.RESTARTING), "status tells of the death")
    assert told["text"].startswith("killed by signal 9 (SIGKILL) at ")
    assert "restarting in" in told["text"]
    assert streams.is_alive(), "the stream was to be open during the kill"
    assert ask(living.client, [user(QUESTION)], max_tokens=2).version == committed + 1
    assert LoopName.TRAINING not in living.deployment.pids(), "a request was to be answered without a trainer"
    (answer,) = streams.finish()
    assert set(tokens_of(living, answer.turn_id).versions) == {committed + 1}

    eventually(lambda: served(living, committed + 2), "the new trainer takes the step")
    steps = store.samples.steps()
    assert len(steps) == committed + 2
    assert set(steps[-1].sample_ids) == taught
    trained = [turn for step in steps for turn in step.sample_ids]
    assert len(trained) == len(set(trained))
    assert store.status.counts().samples_by_state == {"trained": len(trained)}
    log = (living.deployment.config.logs_dir / "training.log").read_text()
    assert f"at step {committed + 1}; 0 leftovers removed" in log
    after = trainer_report(living)
    assert (after.restarts, after.pid != victim) == (1, True)
    assert "SIGKILL" in (after.last_exit or "")


def _told(run_dir: Any, capsys: pytest.CaptureFixture[str], condition: Condition) -> dict[str, Any] | None:
    """What `openclaw-rl status --json` says of the trainer, if it is in that condition."""
    assert main(["status", "--json", "--run-dir", str(run_dir)]) == 0
    loops: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["loops"]
    trainer = next(loop for loop in loops if loop["loop"] == "training")
    return trainer if trainer["condition"] == condition.value else None
