"""What is served without recording leaves nothing of its content on disk: store, its log, log files, records."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openclaw_rl.rollout.records import ConversationRecords
from tests.gateway.conftest import running
from tests.gateway.fake_engine import FakeEngine, Said

ASKED, ANSWERED = "a-question-that-nobody-keeps", "an-answer-that-nobody-keeps"
KEPT = "a-question-that-is-kept"
KEYS = (
    {"name": "private", "key": "key-of-private", "train": False},
    {"name": "open", "key": "key-of-open"},
)


@contextmanager
def logged_into(folder: Path) -> Iterator[None]:
    """Everything that our code logs, at the lowest level, in a file below the run directory."""
    folder.mkdir(parents=True)
    handler = logging.FileHandler(folder / "gateway.log", encoding="utf-8")
    ours = logging.getLogger("openclaw_rl")
    before = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    logging.getLogger("openclaw_rl.test").warning("the log is written")
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(before)
        handler.close()


def holding(run_dir: Path, words: str) -> list[str]:
    return [path.name for path in run_dir.rglob("*") if path.is_file() and words.encode() in path.read_bytes()]


@pytest.mark.parametrize("stream", [True, False])
def test_nothing_of_it_is_on_disk(tmp_path: Path, stream: bool) -> None:
    run_dir = tmp_path / "run"
    engine = FakeEngine(say=lambda _: Said(text=ANSWERED))
    with logged_into(run_dir / "logs"), running(run_dir, engine, api_keys=KEYS) as gateway:

        def ask(words: str, key: str, **headers: str) -> None:
            messages = [{"role": "user", "content": words}]
            body = {"model": "policy", "messages": messages, "stream": stream, "session_id": f"named-{words}"}
            answer = gateway.post(body, headers={"Authorization": f"Bearer {key}", **headers})
            assert answer.status_code == 200
            assert ANSWERED in answer.text

        ask(ASKED, "key-of-open", **{"X-No-Train": "1"})
        ask(ASKED, "key-of-private")
        assert gateway.requests() == []
        assert holding(run_dir, ANSWERED) == []
        ask(KEPT, "key-of-open")
        config = gateway.config.model_copy(
            update={"records": gateway.config.records.model_copy(update={"enabled": True})}
        )
        assert ConversationRecords(gateway.store, config).write_due(0.0) == 1
        assert holding(run_dir, ASKED) == []
        # The same search finds what is recorded, so it would have found the rest.
        assert len(holding(run_dir, KEPT)) >= 2
        assert holding(run_dir, "the log is written") == ["gateway.log"]
    assert holding(run_dir, ASKED) == []
