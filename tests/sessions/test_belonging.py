"""Whose an import is: the gateway's rule, whichever way it was said."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.rollout.samples import build_sample
from openclaw_rl.serving.gateway.auth import key_id
from openclaw_rl.serving.gateway.recorder import Arrival, Opened, Recorder
from openclaw_rl.sessions.belonging import Belonging, Belongings
from openclaw_rl.sessions.importing import import_file
from openclaw_rl.sessions.reading import FileError
from openclaw_rl.store import Store
from openclaw_rl.types import ExclusionReason, Message, Method, Sample, TurnState
from tests.builders import Conversation, make_config, make_judgement, state_of, user
from tests.sessions.conftest import Import
from tests.sessions.lives import exported, lived
from tests.sessions.test_importing import TALK, judge_all, log, turns_of

ANN, BOB = key_id("ann"), key_id("bob")
KEYS = [{"name": "ann", "key": "a"}, {"name": "bob", "key": "b"}]


def config_of(run_dir: Path, per: str) -> Config:
    return make_config(run_dir, serving={"api_keys": KEYS}, policies={"per": per})


def going_on(store: Store, config: Config, key: str, owner: str, messages: list[Message] = TALK) -> Opened:
    """A client's request as the gateway takes it in."""
    return Recorder(store, config.rollout)._open(
        Arrival(
            turn_id="live",
            key_id=key,
            client_session_id=None,
            turn_type=None,
            messages=tuple(messages),
            tools=(),
            session_done=False,
            model="policy",
            created_at=time.time(),
            owner=owner,
        )
    )


@pytest.mark.parametrize(
    ("per", "key", "name", "owner"),
    [
        ("none", None, None, ""),
        ("none", ANN, None, ""),
        ("key", ANN, None, "ann"),
        ("user", ANN, None, "ann"),
        ("user", ANN, "cora", "cora"),
        ("user", None, "cora", "cora"),
        ("user", "local", "bob", "bob"),
    ],
)
def test_of_what_others_told(tmp_path: Path, per: str, key: str | None, name: str | None, owner: str) -> None:
    whose = Belongings(config_of(tmp_path, per), key=key, user=name).of_told()
    assert whose == Belonging(key_id=key or "local", owner=owner)


@pytest.mark.parametrize(
    ("per", "key", "name", "says"),
    [
        ("none", None, "ann", "there is one policy for all"),
        ("key", ANN, "ann", "--key NAME says whose policy it will be"),
        ("key", None, None, "say whose it will be, with --key NAME"),
        ("user", None, None, "say whose it will be, with --user NAME"),
        ("user", "local", None, "say whose it will be, with --user NAME"),
        ("user", None, "a\nb", "--user: user must not contain control characters"),
    ],
)
def test_what_would_be_nobodys_is_refused(
    tmp_path: Path, per: str, key: str | None, name: str | None, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        Belongings(config_of(tmp_path, per), key=key, user=name).of_told()
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("per", "was", "asked", "owner"),
    [
        ("none", (ANN, "ann"), (None, None), ""),
        ("key", (ANN, "ann"), (BOB, None), "bob"),  # not Ann's policy
        ("key", ("local", ""), (BOB, None), "bob"),
        ("key", (ANN, ""), (None, None), "ann"),
        ("key", (key_id("gone"), "gone"), (None, None), "gone"),
        ("user", (ANN, "ann"), (BOB, None), "bob"),  # it was the key that spoke, for no user
        ("user", (ANN, "cora"), (BOB, None), "cora"),
        ("user", (ANN, "cora"), (BOB, "dora"), "dora"),
        ("user", ("local", ""), (None, None), ""),
        ("user", (ANN, ""), (None, None), ""),  # nobody said that it is this Ann
        ("user", (ANN, ""), (ANN, None), "ann"),
        ("user", (ANN, ""), (None, "cora"), "cora"),
        ("user", (ANN, "ann"), (None, None), "ann"),
        ("user", ("local", ""), (None, "cora"), "cora"),
    ],
)
def test_of_an_export_of_elsewhere(
    tmp_path: Path, per: str, was: tuple[str, str], asked: tuple[str | None, str | None], owner: str
) -> None:
    belongings = Belongings(config_of(tmp_path, per), key=asked[0], user=asked[1])
    whose = belongings.of_exported({"key_id": was[0], "owner": was[1]}, at_home=False)
    assert whose == Belonging(key_id=asked[0] or was[0], owner=owner)


@pytest.mark.parametrize("per", ["none", "key", "user"])
def test_at_home_it_stays_whose_it_was(tmp_path: Path, per: str) -> None:
    belongings = Belongings(config_of(tmp_path, per), key=None, user=None)
    assert belongings.of_exported({"key_id": ANN, "owner": "cora"}, at_home=True).owner == "cora"


# --- through to the record ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("per", "owner"), [("key", "ann"), ("user", "cora")])
def test_an_imported_log_is_trained_into_its_owners_policy_and_gone_on_with(
    tmp_path: Path, store: Store, importing: Import, reconstructor: Any, per: str, owner: str
) -> None:
    config = config_of(tmp_path / "run", per)
    path = tmp_path / "log.jsonl"
    path.write_text(log(TALK))
    names = {"key_id": ANN, "user": owner if per == "user" else None}
    done = import_file(store, config, path, reconstructor=lambda: reconstructor, **names)
    assert done.turns_added == 2
    assert [one.owner for one in store.archive.summaries()] == [owner]
    judge_all(store, config, score=-1.0, hint="One sentence.")
    assert [(one.owner, one.count) for one in store.samples.ready_owners(8)] == [(owner, 2)]
    assert import_file(store, config, path, reconstructor=lambda: reconstructor, **names).turns_added == 0
    opened = going_on(store, config, ANN, owner)
    assert opened.request.parent_turn_id == turns_of(store)[-1].turn_id


def test_two_users_of_one_key_who_said_the_same_are_apart(tmp_path: Path, store: Store, reconstructor: Any) -> None:
    config = config_of(tmp_path / "run", "user")
    path = tmp_path / "log.jsonl"
    for text in (log(TALK), log(TALK, session_id="main")):
        path.write_text(text)
        for name in ("cora", "dora"):
            import_file(store, config, path, key_id=ANN, user=name, reconstructor=lambda: reconstructor)
    found = {one.owner: one.turns for one in store.archive.summaries()}
    assert found == {"cora": 2, "dora": 2}
    assert len(store.archive.summaries()) == 2
    hello = [user("Hi."), {"role": "assistant", "content": "Hello!"}]
    for name in ("cora", "dora"):
        path.write_text(log(hello, session_id="main"))
        done = import_file(store, config, path, key_id=ANN, user=name, reconstructor=lambda: reconstructor)
        assert done.turns_added == 1
        assert store.sessions.find(ANN, "main", name) == done.sessions[0]


def test_an_export_given_to_another_key_trains_nobody_elses_policy(
    tmp_path: Path, store: Store, reconstructor: Any
) -> None:
    elsewhere = Store.open(make_config(tmp_path / "elsewhere").store_path)
    Conversation(elsewhere, "hers").turn("hers1", [user("Hm?")], key_id=ANN, owner="ann")
    Conversation(elsewhere, "nobodys").turn("nobodys1", [user("Hm?")])
    path = tmp_path / "all.jsonl"
    path.write_text(json.dumps(exported(elsewhere, "hers")))
    config = config_of(tmp_path / "run", "key")
    import_file(store, config, path, key_id=BOB, reconstructor=lambda: reconstructor)
    (turn,) = turns_of(store)
    assert (turn.request.key_id, turn.request.owner) == (BOB, "bob")
    assert [one.owner for one in store.archive.summaries()] == ["bob"]
    path.write_text(json.dumps(exported(elsewhere, "nobodys")))
    elsewhere.close()
    import_file(store, config, path, reconstructor=lambda: reconstructor)
    assert state_of(store, "nobodys1") == ("excluded", "no_owner")


@pytest.mark.parametrize(
    ("per", "was", "names", "owner"),
    [
        ("key", "ann", {"key_id": BOB}, "bob"),
        ("user", "ann", {"user": "bob"}, "bob"),
        ("user", "", {"user": "ann"}, "ann"),  # from before there were owners
    ],
)
def test_an_export_that_comes_home_to_another_owner_starts_over(
    tmp_path: Path, store: Store, reconstructor: Any, per: str, was: str, names: dict[str, str], owner: str
) -> None:
    config = config_of(tmp_path / "run", per)
    path = tmp_path / "hers.jsonl"

    def back(**whose: str) -> None:
        path.write_text(json.dumps(exported(store, "hers")))
        store.erasure.delete(["hers"], trainer_lives=False)
        import_file(store, config, path, reconstructor=lambda: reconstructor, **whose)

    turn = Conversation(store, "hers").turn("hers1", [user("Hm?")], key_id=ANN, owner=was)
    store.turns.move("hers1", TurnState.AWAITING_NEXT_STATE)
    store.turns.set_next_state("hers1", "next", [user("Shorter.")])
    judgement = make_judgement("hers1", -1.0, hint="Be short.")
    store.turns.record_judgement(judgement)
    sample = build_sample(turn, judgement, Method.COMBINE, now=time.time())
    assert isinstance(sample, Sample)
    store.samples.add(sample)
    back()
    assert store.samples.ready(was).count == 1
    assert state_of(store, "hers1") == ("sampled", None)
    back(**names)
    assert store.samples.ready().count == 0  # another policy drew it
    assert state_of(store, "hers1") == ("served", None)
    (again,) = turns_of(store)
    assert (again.request.owner, again.reconstructed) == (owner, True)


def test_what_was_nobodys_at_home_is_trained_once_somebody_is_named(
    tmp_path: Path, store: Store, reconstructor: Any
) -> None:
    config = config_of(tmp_path / "run", "user")
    Conversation(store, "nobodys").turn("nobodys1", [user("Hm?")], key_id="local")
    store.turns.move("nobodys1", TurnState.EXCLUDED, reason=ExclusionReason.NO_OWNER)
    path = tmp_path / "nobodys.jsonl"
    path.write_text(json.dumps(exported(store, "nobodys")))
    store.erasure.delete(["nobodys"], trainer_lives=False)
    import_file(store, config, path, user="ann", reconstructor=lambda: reconstructor)
    assert state_of(store, "nobodys1") == ("served", None)


def test_a_session_of_another_user_is_not_touched(store: Store, config: Config, importing: Import) -> None:
    lived(store, config)
    tree = exported(store, "life")
    for row in (tree["session"], *(turn["request"] for turn in tree["turns"])):
        row["owner"] = "ann"
    with pytest.raises(FileError, match="belongs to another user"):
        importing(json.dumps(tree))
