"""What others told: read strictly, placed once, and taken on by the running loops."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw_rl.config import Config
from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.serving.gateway.recorder import Arrival, Recorder
from openclaw_rl.sessions.formats import to_message_logs, to_trajectory
from openclaw_rl.sessions.importing import import_file
from openclaw_rl.sessions.reading import FileError, read_file
from openclaw_rl.sessions.reconstruct import Reconstructor
from openclaw_rl.store import Store
from openclaw_rl.types import NO_VERSION, Message, Method, TokenRecord, Turn, TurnType
from tests.builders import Conversation, make_config, make_judgement, make_turn, state_of, user
from tests.sessions.conftest import Import
from tests.sessions.lives import exported, lived


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


TALK: list[Message] = [
    user("What is a tide?"),
    says("The tide is the rise and fall of the sea, and there is much to say of it."),
    user("Too long. One sentence, please."),
    says("The sea's rise and fall."),
    user("Thanks."),
]
TRAJECTORY: dict[str, Any] = {
    "session_id": "old-1",
    "turns": [
        {"type": "main", "prompt": "What is a tide?", "response": "Water.", "next_state": "More.", "trainable": True},
        {"type": "side", "prompt": "Title?", "response": "Tides", "next_state": None, "trainable": False},
        {"type": "main", "prompt": [user("More.")], "response": says("Much water."), "next_state": None,
         "trainable": True},
        {"type": "main", "prompt": "Secret", "response": "No.", "next_state": "Hm.", "trainable": False},
    ],
}  # fmt: skip


def log(messages: Sequence[Message], **more: Any) -> str:
    return json.dumps({"messages": list(messages), **more}) + "\n"


def turns_of(store: Store) -> list[Turn]:
    return [turn for one in store.archive.summaries() for turn in store.turns.of_session(one.session_id)]


def judge_all(store: Store, config: Config, **judgement: Any) -> None:
    run_pass(store, config, time.time())
    for turn, _ in store.turns.claim_for_judging(99, 60.0):
        store.turns.record_judgement(make_judgement(turn.turn_id, **judgement))
    run_pass(store, config, time.time())


# --- message logs ------------------------------------------------------------------------------------------


def test_a_log_becomes_turns_with_parents_and_next_states(store: Store, config: Config, importing: Import) -> None:
    done = importing(log(TALK))
    assert (done.turns_told, done.turns_added, len(done.sessions)) == (2, 2, 1)
    first, second = turns_of(store)
    assert first.request.messages == tuple(TALK[:1])
    assert second.request.parent_turn_id == first.turn_id
    assert second.request.new_messages == (TALK[2],)
    judge_all(store, config, score=-1.0, hint="One sentence.")
    first, second = turns_of(store)
    assert first.next_state == (TALK[2],)
    assert second.next_state == (TALK[4],)
    assert {state_of(store, turn.turn_id)[0] for turn in (first, second)} == {"sampled"}
    (summary,) = store.archive.summaries()
    assert (summary.end_reason, summary.turns, summary.requests, summary.reconstructed) == ("imported", 2, 3, 2)


def test_tokens_are_those_of_the_rendering_and_nothing_is_invented(
    store: Store, importing: Import, reconstructor: Reconstructor
) -> None:
    importing(log(TALK))
    first, second = turns_of(store)
    whole = reconstructor._renderer.render(TALK[:2], generation_prompt=False)
    for turn in (first, second):
        assert turn.reconstructed
        assert set(turn.tokens.logprobs) == {None}
        assert set(turn.tokens.versions) == {NO_VERSION}
        assert turn.tokens.response_ids[-1] in reconstructor._end_ids
        assert turn.tokens.prompt_ids == reconstructor._renderer.render(turn.request.messages)
    made = first.tokens.prompt_ids + first.tokens.response_ids
    assert whole[: len(made)] == made
    assert len(whole) - len(made) <= 1  # the line break that the template writes after an answer


def test_importing_twice_adds_nothing_and_going_on_adds_the_rest(store: Store, importing: Import) -> None:
    importing(log(TALK[:3]))
    before = store.status.counts()
    again = importing(log(TALK[:3]))
    assert (again.turns_told, again.turns_added) == (1, 0)
    assert store.status.counts() == before
    more = importing(log(TALK) * 2)
    assert (more.turns_told, more.turns_added) == (4, 1)
    (summary,) = store.archive.summaries()
    assert summary.turns == 2


def test_an_answer_that_was_served_here_is_not_taken_again(store: Store, config: Config, importing: Import) -> None:
    recorder = Recorder(store, config.rollout)
    opened = recorder._open(
        Arrival(
            turn_id="live",
            key_id="local",
            client_session_id=None,
            turn_type=None,
            messages=tuple(TALK[:1]),
            tools=(),
            session_done=False,
            model="policy",
            created_at=time.time(),
        )
    )
    served = make_turn(request=opened.request, answer=TALK[1])
    store.turns.record_turn(served, context_hash=opened.hasher.extended(TALK[1]))
    done = importing(log(TALK))
    assert (done.turns_told, done.turns_added) == (2, 1)
    (session,) = store.archive.summaries()
    live, imported = store.turns.of_session(session.session_id)
    assert (live.turn_id, live.reconstructed, imported.reconstructed) == ("live", False, True)
    assert imported.request.parent_turn_id == "live"
    judge_all(store, config, score=1.0)
    assert state_of(store, "live")[0] == "sampled"


def test_a_live_client_goes_on_with_an_imported_conversation(store: Store, config: Config, importing: Import) -> None:
    importing(log(TALK[:4]))
    opened = Recorder(store, config.rollout)._open(
        Arrival(
            turn_id="live",
            key_id="local",
            client_session_id=None,
            turn_type=None,
            messages=tuple(TALK),
            tools=(),
            session_done=False,
            model="policy",
            created_at=time.time(),
        )
    )
    last = turns_of(store)[-1]
    assert opened.request.parent_turn_id == last.turn_id
    assert opened.request.session_id == last.request.session_id
    run_pass(store, config, time.time())
    assert turns_of(store)[1].next_state == (TALK[4],)


def test_tools_weights_and_side_turns_of_logs(store: Store, config: Config, importing: Import) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    asked: list[Message] = [
        {"role": "system", "content": "Be kind."},
        says("Welcome!"),
        user("Look."),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {**says("It rains."), "weight": 0},
        user("Read HEARTBEAT.md and say OK."),
        says("OK"),
    ]
    importing(log(asked, tools=[tool]))
    looked, said, side = turns_of(store)
    assert looked.request.tools == (tool,)
    assert (looked.finish_reason, said.finish_reason) == ("tool_calls", "stop")
    assert (said.state, said.reason) == ("excluded", "not_trainable")
    assert (side.request.turn_type, side.request.side_rule) == (TurnType.SIDE, "heartbeat")
    judge_all(store, config, score=-1.0, hint="Say where.")
    assert turns_of(store)[0].next_state == (asked[4],)
    assert state_of(store, side.turn_id)[1] == "side_turn"


# --- trajectories ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["object", "list", "lines"])
def test_a_trajectory_is_judged_as_it_says(store: Store, config: Config, importing: Import, shape: str) -> None:
    text = {
        "object": json.dumps(TRAJECTORY, indent=2),
        "list": json.dumps([TRAJECTORY]),
        "lines": json.dumps(TRAJECTORY),
    }
    done = importing(text[shape])
    assert (done.turns_told, done.turns_added) == (4, 4)
    (summary,) = store.archive.summaries()
    assert summary.client_session_id == "old-1"
    judge_all(store, config, score=-1.0, hint="Say more.")
    found = {turn.request.messages[0]["content"]: turn for turn in turns_of(store)}
    assert {question: (turn.state, turn.reason) for question, turn in found.items()} == {
        "What is a tide?": ("sampled", None),
        "Title?": ("excluded", "side_turn"),
        "More.": ("excluded", "no_next_state"),
        "Secret": ("excluded", "not_trainable"),
    }
    assert found["What is a tide?"].next_state == (user("More."),)
    assert importing(text[shape]).turns_added == 0


def test_our_trajectories_and_logs_come_back_by_content(
    store: Store, config: Config, importing: Import, tmp_path: Path, reconstructor: Reconstructor
) -> None:
    importing(log(TALK))
    judge_all(store, config, score=-1.0, hint="One sentence.")
    (summary,) = store.archive.summaries()
    rows = store.archive.read(summary.session_id)
    assert rows is not None
    trajectory, logs = to_trajectory(rows), to_message_logs(rows)
    assert [turn["trainable"] for turn in trajectory["turns"]] == [True, True]
    assert [turn["next_state"] for turn in trajectory["turns"]] == [[TALK[2]], [TALK[4]]]
    assert logs == [{"messages": TALK}]
    for index, text in enumerate((json.dumps(trajectory), json.dumps(logs[0]))):
        other_config = make_config(tmp_path / f"other{index}")
        other = Store.open(other_config.store_path)
        path = tmp_path / "out.json"
        path.write_text(text)
        assert import_file(other, other_config, path, reconstructor=lambda: reconstructor).turns_added == 2
        judge_all(other, other_config, score=-1.0, hint="One sentence.")
        assert [turn.next_state for turn in turns_of(other)] == [(TALK[2],), (TALK[4],)]
        assert [turn.tokens for turn in turns_of(other)] == [turn.tokens for turn in turns_of(store)]
        other.close()


# --- methods -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "score", "hint", "ends"),
    [
        (Method.BINARY_RL, -1.0, "Short.", ("excluded", "reconstructed")),
        (Method.COMBINE, -1.0, "Short.", ("sampled", None)),
        (Method.COMBINE, 1.0, None, ("excluded", "reconstructed")),
        (Method.COMBINE, 0.0, None, ("excluded", "no_signal")),
        (Method.OPD, 1.0, None, ("excluded", "no_signal")),
        (Method.OPD, 0.0, "Short.", ("sampled", None)),
    ],
)
def test_it_is_distilled_from_only(
    store: Store, config: Config, importing: Import, method: Method, score: float, hint: str | None, ends: Any
) -> None:
    training = config.training.model_copy(update={"method": method})
    rollout = config.rollout.model_copy(update={"at_least_one": True, "accepted_retry": True})
    config = config.model_copy(update={"training": training, "rollout": rollout})
    importing(log(TALK))
    judge_all(store, config, score=score, hint=hint)
    judge_all(store, config, score=score, hint=hint)
    assert {(turn.state, turn.reason) for turn in turns_of(store)} == {ends}
    for sample in store.samples.claim(9, 60.0):
        assert (sample.reward, sample.retry, sample.hint, sample.version) == (None, None, hint, None)
    assert bool(store.turns.judgements()) is (method is not Method.BINARY_RL)


def test_it_never_expires(store: Store, config: Config, importing: Import) -> None:
    importing(log(TALK))
    judge_all(store, config, score=-1.0, hint="Short.")
    assert store.samples.expire(before_version=10**6) == 0
    assert store.samples.ready().count == 2


# --- our own export ----------------------------------------------------------------------------------------


def test_an_export_comes_back_to_where_it_was(store: Store, config: Config, importing: Import) -> None:
    lived(store, config)
    tree = exported(store, "life")
    store.erasure.delete(["life"], trainer_lives=True)
    done = importing(json.dumps(tree))
    assert (done.turns_told, done.turns_added) == (5, 5)
    back = exported(store, "life")
    for one, other in zip(tree["turns"], back["turns"], strict=True):
        if one["turn"] is not None:
            one["turn"]["judge_lease_until"], one["turn"]["judge_attempts"] = None, 0
        assert one == other
    assert importing(json.dumps(tree)).turns_added == 0
    assert [sample.turn_id for sample in store.samples.claim(9, 60.0)] == ["life2"]


def test_an_export_of_elsewhere_starts_over_as_reconstructed(
    store: Store, importing: Import, config: Config, tmp_path: Path
) -> None:
    elsewhere_config = make_config(tmp_path / "elsewhere")
    elsewhere = Store.open(elsewhere_config.store_path)
    lived(elsewhere, elsewhere_config)
    tree = exported(elsewhere, "life")
    elsewhere.close()
    done = importing(json.dumps(tree), key_id="mine")
    assert done.turns_added == 5
    turns = turns_of(store)
    assert {turn.state for turn in turns} == {"served"}
    assert all(turn.reconstructed and turn.request.key_id == "mine" for turn in turns)
    # These prompts were made up by a test: this model reads other tokens, and has its own.
    assert all(set(turn.tokens.logprobs) == {None} for turn in turns)
    assert len(store.turns.judgements()) == len([one for turn in tree["turns"] for one in turn["judgements"]])
    judge_all(store, config, score=-1.0, hint="Short.")
    assert store.samples.ready().count == 3
    assert importing(json.dumps(tree), key_id="mine").turns_added == 0


def test_tokens_of_elsewhere_stay_where_this_model_reads_the_same(
    store: Store, importing: Import, tmp_path: Path, reconstructor: Reconstructor
) -> None:
    elsewhere_config = make_config(tmp_path / "elsewhere")
    elsewhere = Store.open(elsewhere_config.store_path)
    talk = Conversation(elsewhere, "same")
    request = talk.ask("same1", [user("Hm?")])
    prompt = reconstructor.prompt_ids(request.messages, ())
    tokens = TokenRecord(prompt_ids=prompt, response_ids=(9, 8), logprobs=(-0.25, -3.5), versions=(4, 4))
    talk.answer(request, tokens=tokens)
    importing(json.dumps(exported(elsewhere, "same")))
    elsewhere.close()
    (turn,) = turns_of(store)
    assert turn.tokens == tokens
    assert turn.reconstructed


# --- files that are wrong ----------------------------------------------------------------------------------

WRONG: list[tuple[str, str]] = [
    ("", "there is nothing in it"),
    ("[]", "there is nothing in it"),
    (log(TALK) + "{oops}\n", "line 2, column 2: not JSON"),
    ('{"messages": [\n  {"role": "user",, }\n]}', "line 2, column 19: not JSON"),
    ("3", "must be an object"),
    ('{"dialogue": []}', "neither a trajectory"),
    (log(TALK) + log([{"role": "usr", "content": "x"}]), "line 2: messages[0].role"),
    (log([user("x"), {"role": "assistant"}]), "line 1: messages[1].content"),
    (log([user("x")]), "line 1: messages: no assistant's message answers anything"),
    (log(TALK, tool=[]), "line 1: tool: no such field; the nearest valid name is tools"),
    (log([user("x"), {**says("y"), "weight": 2}]), "line 1: messages[1].weight"),
    (json.dumps({"turns": []}), "session_id"),
    (json.dumps({"session_id": "s", "turns": [{"type": "main", "prompt": "x"}]}), "line 1: turns[0].response"),
    (json.dumps([TRAJECTORY, {"session_id": "s", "turns": [{"type": "mian", "prompt": "x", "response": "y"}]}]),
     "[1]: turns[0].type"),
    (json.dumps({"session_id": "s", "turns": [{**TRAJECTORY["turns"][0], "nextstate": 1}]}),
     "turns[0].nextstate: no such field; the nearest valid name is next_state"),
    (json.dumps({"session_id": "s", "turns": [{**TRAJECTORY["turns"][0], "trainable": "yes"}]}),
     "turns[0].trainable"),
    ('{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "x"}]}', "surrogate"),
    ('{"messages": [{"role": "user", "content": NaN}]}', "not JSON (NaN is no JSON number)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_wrong_file_is_named_and_adds_nothing(store: Store, importing: Import, text: str, says: str) -> None:
    before = store.status.counts()
    with pytest.raises(FileError, match=r"told\.jsonl") as refused:
        importing(text)
    assert says in str(refused.value)
    assert store.status.counts() == before


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        read_file(tmp_path / "nowhere.jsonl")
    path = tmp_path / "bytes"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="not UTF-8"):
        read_file(path)


# --- any conversations -------------------------------------------------------------------------------------

WORDS = st.sampled_from(["a", "b", "c"])
TALKS = st.lists(st.lists(WORDS, min_size=2, max_size=7), min_size=1, max_size=4)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(talks=TALKS, split=st.integers(0, 4))
def test_any_logs_once_twice_or_in_two_files_give_the_same(
    talks: list[list[str]], split: int, tmp_path_factory: pytest.TempPathFactory, reconstructor: Reconstructor
) -> None:
    """Each prompt's each answer is one turn; its next state is one that was really said after it."""
    folder = tmp_path_factory.mktemp("any")
    logs = [[(user if at % 2 == 0 else says)(word) for at, word in enumerate(talk)] for talk in talks]
    config = make_config(folder / "run")
    store = Store.open(config.store_path)
    for part in (logs[:split], logs[split:], logs):
        if part:
            path = folder / "told.jsonl"
            path.write_text("".join(map(log, part)))
            import_file(store, config, path, reconstructor=lambda: reconstructor)
    run_pass(store, config, time.time())
    told: dict[str, list[Any]] = {}
    for messages in logs:
        for at in range(1, len(messages), 2):
            told.setdefault(json.dumps(messages[: at + 1]), []).extend(messages[at + 1 : at + 2])
    found = {json.dumps([*turn.request.messages, turn.answer]): turn for turn in turns_of(store)}
    assert len(turns_of(store)) == len(found)
    assert found.keys() == told.keys()
    for key, turn in found.items():
        assert turn.next_state is None if not told[key] else list(turn.next_state or ()) == told[key][:1]
    store.close()
