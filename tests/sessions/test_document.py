"""The full export loses nothing, and a document that is wrong says where."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.config import Config
from openclaw_rl.sessions.document import _PACKED as PACKED
from openclaw_rl.sessions.document import DocumentError, from_document
from openclaw_rl.store import Store, codec
from openclaw_rl.store.archive import SessionRows
from openclaw_rl.types import NO_VERSION
from tests.sessions.lives import exported, lived

LOGPROBS = st.lists(st.none() | st.floats(allow_nan=False) | st.just(math.inf))


def changed(tree: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    copied = copy.deepcopy(tree)
    *parents, last = path.split(".")
    at: Any = copied
    for part in parents:
        at = at[int(part)] if part.isdigit() else at[part]
    if value is KeyError:
        del at[last]
    else:
        at[last] = value
    return copied


def test_a_session_comes_back_as_it_was(store: Store, config: Config) -> None:
    lived(store, config)
    before = store.archive.read("life")
    tree = exported(store, "life")
    assert {turn["turn"]["state"] for turn in tree["turns"] if turn["turn"]} == {"sampled", "excluded", "judging"}
    assert {turn["sample"]["state"] for turn in tree["turns"] if turn["sample"]} == {"trained", "ready"}
    odd = next(turn["turn"] for turn in tree["turns"] if turn["request"]["turn_id"] == "lifeodd")
    assert odd["logprobs"] == [-0.1234567890123456789, "-inf", None]
    assert odd["kept"] == [[7, 8], None, [9]]
    store.erasure.delete(["life"], trainer_lives=True)
    assert store.archive.put([from_document(tree).rows]) == 5
    assert exported(store, "life") == tree
    after = store.archive.read("life")
    assert before is not None
    assert after is not None
    assert without_ids(after) == without_ids(before)
    assert store.feedback.take() == 0  # what was acted upon is not acted upon again


def without_ids(rows: SessionRows) -> Any:
    return [
        (turn.request, turn.turn and {**turn.turn, "feedback_seen": None}, turn.sample, [
            {**one, "judgement_id": 0} for one in turn.judgements
        ], [{**one, "signal_id": 0} for one in turn.signals])
        for turn in rows.turns
    ]  # fmt: skip


def test_putting_twice_adds_nothing(store: Store, config: Config) -> None:
    lived(store, config)
    tree = exported(store, "life")
    counts = store.status.counts()
    assert store.archive.put([from_document(tree).rows]) == 0
    assert store.status.counts() == counts


def test_a_session_of_another_key_is_not_touched(store: Store, config: Config) -> None:
    lived(store, config)
    tree = exported(store, "life")
    for row in (
        tree["session"],
        *(part for turn in tree["turns"] for part in (turn["request"], turn["turn"]) if part),
    ):
        row["key_id"] = "other"
    with pytest.raises(PermissionError):
        store.archive.put([from_document(tree).rows])


@given(LOGPROBS)
def test_log_probabilities_keep_every_bit(values: list[float | None]) -> None:
    speak, read = PACKED["logprobs"]
    blob = codec.pack_logprobs([*values, math.nan])
    assert read(speak(blob)) == blob


@given(st.lists(st.integers(0, NO_VERSION)))
def test_versions_keep_what_no_version_drew(values: list[int]) -> None:
    speak, read = PACKED["versions"]
    spoken = speak(codec.pack_ids(values))
    assert [value is None for value in spoken] == [value == NO_VERSION for value in values]
    assert codec.unpack_ids(read(spoken)) == tuple(values)


WRONG: list[tuple[str, Any, str]] = [
    ("format_version", 2, "format_version: this version reads 1, not 2"),
    ("deployment", 1, "deployment: a string is wanted"),
    ("turns", {}, "turns: a list is wanted"),
    ("extra", 1, "extra: no such field"),
    ("session.ended", 1, "session.ended: no such field; the nearest valid name is ended_at"),
    ("session.key_id", KeyError, "session.key_id: missing"),
    ("session.created_at", "now", "session.created_at: float is wanted, not str"),
    ("turns.0.turn.state", None, "turns[0].turn.state: null is not possible here"),
    ("turns.0.turn.prompt_ids", ["x"], "turns[0].turn.prompt_ids: not a list of such numbers"),
    ("turns.0.turn.logprobs", ["much"], "turns[0].turn.logprobs: not a list of such numbers"),
    ("turns.1.request.session_id", "other", "turns[1].request: it is of another session"),
    ("turns.0.judgements.0.turn_id", "other", "turns[0]: what belongs to one turn has different turn_ids"),
    ("turns.0.turn", None, "turns[0].turn: null, and yet something came of it"),
    ("turns.0.sample", 3, "turns[0].sample: an object is wanted"),
    ("turns.0.request.ambiguous", 1, "turns[0].request.ambiguous: bool is wanted, not int"),
]


@pytest.mark.parametrize(("path", "value", "says"), WRONG, ids=[path for path, _, _ in WRONG])
def test_what_is_wrong_is_named(store: Store, config: Config, path: str, value: Any, says: str) -> None:
    lived(store, config)
    with pytest.raises(DocumentError) as refused:
        from_document(changed(exported(store, "life"), path, value))
    assert str(refused.value).startswith(says)
