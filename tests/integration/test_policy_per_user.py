"""Two users with opposite feedback on one answer, through real processes: each has a policy of its own afterwards."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.config_sources import load_json
from openclaw_rl.serving.engines.factory import connect as engine_of
from openclaw_rl.serving.engines.protocol import ScoreRequest
from openclaw_rl.store import Store
from openclaw_rl.supervision.deployment import Deployment
from openclaw_rl.supervision.state import child_config_path
from openclaw_rl.supervision.status import collect, render
from openclaw_rl.types import PolicyVersion, TokenRecord
from tests.engines.support import plain_logprobs, plain_model
from tests.integration.support import QUESTION, Answer, ask, connect, deployment_config, user
from tests.supervision.waiting import eventually

SAID = {"ann": "[good]", "bob": "[bad]"}


def test_opposite_feedback_moves_policies_apart(tiny_path: Path, tmp_path: Path) -> None:
    config = deployment_config(
        tmp_path / "run",
        tiny_path,
        policies={"per": "user"},
        rollout={"batch_size": 1},
        training={"lr": 1e-3, "epochs_per_batch": 5, "loss": {"baseline": "none"}},
    )
    with Deployment(config) as deployment, connect(deployment.url) as client:
        store = Store.open(deployment.config.store_path)
        try:
            tokens = {name: _rated(client, store, name, said) for name, said in SAID.items()}
            versions = {name: eventually(partial(_own_version, store, name), f"{name} has a policy") for name in SAID}
            running = load_json(child_config_path(deployment.config.run_dir))  # with the engine's real port
            assert tokens["ann"].response_ids == tokens["bob"].response_ids  # one answer, of the base
            scored = asyncio.run(_scores(running, tokens["ann"], {"base": 0, **_numbers(versions)}))
            assert sum(scored["ann"]) > sum(scored["base"]) + 0.05
            assert sum(scored["bob"]) < sum(scored["base"]) - 0.05
            for name, version in versions.items():
                _is_served_by(tiny_path, store, client, name, version)
            report = collect(deployment.config.run_dir)
            assert report.progress is not None
            assert report.progress.owners is not None
            assert (report.progress.owners.seen, report.progress.owners.trained) == (2, 2)
            assert "2 with a policy of their own" in render(report)
        finally:
            store.close()


def _rated(client: Any, store: Store, name: str, said: str) -> TokenRecord:
    """The tokens of the answer that a user gave this reaction to."""
    first = _ask(client, name, [user(QUESTION)], seed=3, max_tokens=12)
    history = [user(QUESTION), {"role": "assistant", "content": first.text}, user(said)]
    _ask(client, name, history, max_tokens=2)
    return _tokens(store, first)


def _ask(client: Any, name: str, messages: list[Any], **options: Any) -> Answer:
    return ask(client, messages, session=f"session-{name}", user=name, **options)


def _tokens(store: Store, answer: Answer) -> TokenRecord:
    turn = store.turns.get(answer.turn_id)
    assert turn is not None
    return turn.tokens


def _own_version(store: Store, name: str) -> PolicyVersion | None:
    serving = store.versions.serving(name)
    return serving if serving.version else None


def _numbers(versions: dict[str, PolicyVersion]) -> dict[str, int]:
    return {name: version.version for name, version in versions.items()}


async def _scores(config: Config, tokens: TokenRecord, versions: dict[str, int]) -> dict[str, tuple[float, ...]]:
    """What the running engine says of these tokens under each version."""
    engine = engine_of(config)
    ids, start = (*tokens.prompt_ids, *tokens.response_ids), len(tokens.prompt_ids)
    try:
        return {
            name: (await engine.score(ScoreRequest(ids=ids, start=start, version=version))).logprobs
            for name, version in versions.items()
        }
    finally:
        await engine.close()


def _is_served_by(base: Path, store: Store, client: Any, name: str, version: PolicyVersion) -> None:
    """A user's answers have the log-probabilities of the user's own adapter, as PEFT reads it."""
    answer = _ask(client, name, [user("What is salt?")], temperature=1.0, max_tokens=12)
    assert answer.version == version.version
    tokens = _tokens(store, answer)
    own = plain_logprobs(plain_model(base, Path(str(version.path)).parent), tokens.prompt_ids, tokens.response_ids)
    assert max(abs(a - float(b or 0)) for a, b in zip(own, tokens.logprobs, strict=True)) < 1e-3
