"""`policy`, `sessions` and `status` where each user has a policy: whose it is is shown, and can be asked for."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_rl.cli import main
from openclaw_rl.config_render import write_private_json
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.rollout.waiting import waiting_samples
from openclaw_rl.serving.gateway.auth import key_id
from openclaw_rl.serving.gateway.namesakes import namesakes
from openclaw_rl.store import Store
from openclaw_rl.supervision.owners_fit import check_owners
from openclaw_rl.supervision.state import child_config_path
from openclaw_rl.supervision.status_owners import owners_report
from tests.builders import Conversation, make_config
from tests.store.helpers import candidate, step_record
from tests.training.test_cycle import make_loop
from tests.training.test_turns_of_owners import config_of, give, work_off


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ann and Bob have a version each; one more sample of Ann's waits."""
    for name in [name for name in os.environ if name.startswith("OPENCLAW_RL_")]:
        monkeypatch.delenv(name)
    config = config_of(tmp_path)
    write_private_json(config, child_config_path(tmp_path))
    store = Store.open(config.store_path)
    give(store, "ann", 0, 1)
    give(store, "bob", 10, 11)
    work_off(make_loop(config, store))
    give(store, "ann", 2)
    report = owners_report(store, config, time.time())
    assert report is not None
    assert (report.seen, report.trained, report.waiting, report.due, report.held) == (2, 2, 1, 0, 0)
    assert report.words()[0] == "2 seen, 2 with a policy of their own; one policy per user"
    assert "ann: policy-v1, 1 samples wait" in report.words()
    assert owners_report(store, config.model_copy(update={"policies": type(config.policies)()}), 0.0) is None
    store.close()
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], run_dir: Path, *arguments: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main([*arguments, "--run-dir", str(run_dir)]) == code
    said = capsys.readouterr()
    return said.out if code == 0 else said.err


def in_service(run_dir: Path, owner: str) -> int:
    store = Store.open(run_dir / "store.sqlite")
    try:
        return store.versions.serving(owner).version
    finally:
        store.close()


def test_versions_say_whose_they_are(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    rows = json.loads(run(capsys, run_dir, "policy", "list", "--json"))
    assert [(row["name"], row["owner"]) for row in rows] == [
        ("base", None),
        ("policy-v1", "ann"),
        ("policy-v2", "bob"),
    ]
    assert "owner" in run(capsys, run_dir, "policy", "list")
    rows = json.loads(run(capsys, run_dir, "policy", "list", "--user", "bob", "--json"))
    assert [row["name"] for row in rows] == ["policy-v2"]
    assert "policy-v1" in run(capsys, run_dir, "policy", "show", "serving", "--user", "ann")
    said = run(capsys, run_dir, "policy", "show", "policy-v1", "--user", "bob", code=2)
    assert "policy-v1 is no version of bob's policy" in said

    assert "--user NAME" in run(capsys, run_dir, "policy", "rollback", "base", code=2)
    assert "in place of policy-v1" in run(capsys, run_dir, "policy", "rollback", "base", "--user", "ann")
    assert (in_service(run_dir, "ann"), in_service(run_dir, "bob")) == (0, 2)
    said = run(capsys, run_dir, "policy", "pin", "policy-v1")
    assert "policy-v1 stays in service, and this policy's training waits" in said
    assert said.endswith("openclaw-rl policy unpin --user ann\n")
    assert in_service(run_dir, "ann") == 1
    assert "no version was pinned" in run(capsys, run_dir, "policy", "unpin", "--user", "bob")
    assert "policy-v1 may be followed" in run(capsys, run_dir, "policy", "unpin", "--user", "ann")

    listed = json.loads(run(capsys, run_dir, "sessions", "list", "--user", "ann", "--json"))
    assert [(one["session_id"], one["user"]) for one in listed] == [("session-ann", "ann")]
    told = run(capsys, run_dir, "sessions", "delete", "--user", "ann", "--yes")
    assert "deleted 1 session" in told
    assert "policy-v1" in told
    assert json.loads(run(capsys, run_dir, "sessions", "list", "--user", "bob", "--json"))


def test_whoever_has_no_policy_is_named_beside_the_list(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    def told(*arguments: str) -> tuple[str, str]:
        capsys.readouterr()
        assert main(["policy", "list", *arguments, "--run-dir", str(run_dir)]) == 0
        said = capsys.readouterr()
        return said.out, said.err

    nearest = "openclaw-rl: nobody called Anne has a policy of their own; the nearest name is ann\n"
    assert told("--user", "Anne", "--json") == ("[]\n", nearest)
    table, said = told("--user", "Anne")
    assert (table.split()[0], len(table.splitlines()), said) == ("version", 1, nearest)
    assert told("--user", "zzz")[1] == "openclaw-rl: nobody called zzz has a policy of their own\n"
    assert told("--user", "bob")[1] == told()[1] == ""
    run(capsys, run_dir, "policy", "pin", "base", "--user", "zzz")
    assert told("--user", "zzz")[1] == "", "the base is listed, which zzz is kept at"


def test_pins_of_owners_are_shown_and_lifted_by_name(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    assert "nobody's is pinned" in run(capsys, run_dir, "policy", "unpin", code=2)
    said = run(capsys, run_dir, "policy", "pin", "base", "--user", "ann b; rm")
    assert said.endswith("openclaw-rl policy unpin --user 'ann b; rm'\n")
    run(capsys, run_dir, "policy", "pin", "policy-v2")
    said = run(capsys, run_dir, "policy", "unpin", code=2)
    assert "policies.per = user: say whose policy, with --user NAME; pinned are those of ann b; rm, bob" in said
    assert "pinned for ann b; rm" in run(capsys, run_dir, "policy", "list")
    (base,) = json.loads(run(capsys, run_dir, "policy", "list", "--user", "ann b; rm", "--json"))
    assert (base["name"], base["pinned_for"]) == ("base", ["ann b; rm"])
    assert "base may be followed" in run(capsys, run_dir, "policy", "unpin", "--user", "ann b; rm")
    assert "policy-v2 may be followed" in run(capsys, run_dir, "policy", "unpin", "--user", "bob")
    assert json.loads(run(capsys, run_dir, "policy", "list", "--user", "ann b; rm", "--json")) == []


def test_the_shared_policys_versions_cannot_be_pinned_and_a_pin_of_before_is_lifted(
    capsys: pytest.CaptureFixture[str], run_dir: Path, tmp_path: Path
) -> None:
    store = Store.open(run_dir / "store.sqlite")
    files = store.versions.get(1)
    assert files is not None
    store.samples.commit_step(step_record(3), replace(candidate(3), path=files.path))
    store.versions.serve(3)
    for action in ("pin", "rollback"):
        said = run(capsys, run_dir, "policy", action, "3", code=2)
        assert "policy-v3 is of the shared policy, which serves nobody with policies.per = user" in said
    assert store.versions.pinned_owners() == set()
    store.versions.pin(3)  # as it was before policies.per was set
    run(capsys, run_dir, "policy", "pin", "base", "--user", "ann")
    assert "pinned are those of ann" in run(capsys, run_dir, "policy", "unpin", code=2)
    run(capsys, run_dir, "policy", "unpin", "--user", "ann")
    assert "policy-v3 may be followed" in run(capsys, run_dir, "policy", "unpin")
    assert store.versions.pinned_owners() == set()
    assert "nobody's is pinned" in run(capsys, run_dir, "policy", "unpin", code=2)
    store.close()


def test_a_name_that_looks_like_markup_is_shown(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    run(capsys, run_dir, "policy", "pin", "base", "--user", "[/a]")
    assert "pinned for [/a]" in run(capsys, run_dir, "policy", "list")
    assert "[/a]" in run(capsys, run_dir, "policy", "show", "base")
    assert "a name is wanted" in run(capsys, run_dir, "policy", "rollback", "base", "--user", "", code=2)


def test_diff_counts_the_steps_of_its_own_line(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    def steps(a: str, b: str) -> tuple[int, int]:
        found = json.loads(run(capsys, run_dir, "policy", "diff", a, b, "--json"))
        return found["steps_between"], found["samples_between"]

    assert steps("base", "policy-v2") == (1, 2)  # policy-v1 is Ann's
    assert steps("policy-v2", "base") == (1, 2)
    assert steps("policy-v1", "policy-v2") == (2, 4)  # neither is on the other's way
    assert steps("policy-v2", "policy-v2") == (0, 0)


def test_status_counts_no_batch_as_due_that_is_held(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    config = config_of(run_dir)
    store = Store.open(config.store_path)
    give(store, "ann", 3)
    give(store, "bob", 12, 13)
    store.samples.claim(2, 60.0, "bob")
    give(store, "bob", 14, 15)

    def said() -> str:
        report = owners_report(store, config, time.time())
        assert report is not None
        assert report.batch().startswith(waiting_samples(store, config, time.time()).why)
        return report.batch()

    assert said() == "2 of 2 owners with samples have a batch that is due"
    run(capsys, run_dir, "policy", "pin", "base", "--user", "ann")
    assert said() == (
        "1 of 2 owners with samples have a batch that is due; 1 of them held: "
        "ann is pinned (openclaw-rl policy unpin --user ann)"
    )
    report = owners_report(store, config, time.time())
    assert report is not None
    assert "ann: base (pinned), 2 samples wait" in report.words()
    store.samples.commit_step(replace(step_record(3, "t12", "t13"), owner="bob"), replace(candidate(3), owner="bob"))
    run(capsys, run_dir, "policy", "unpin", "--user", "ann")
    assert said() == (
        "1 of 2 owners with samples have a batch that is due; 1 of them held: policy-v3 of bob is not in service yet"
    )
    store.close()


def test_status_warns_of_a_key_that_is_called_like_a_user_of_another(tmp_path: Path) -> None:
    keys = [{"name": "team", "key": "t"}, {"name": "root", "key": "r", "admin": True}]
    policies = {"per": "user"}
    before = make_config(tmp_path, serving={"api_keys": keys}, policies=policies)
    store = Store.open(before.store_path)
    for owner, key in (("bob", "team"), ("cora", "root"), ("team", "team")):
        Conversation(store, f"s-{owner}").turn(f"t-{owner}", owner=owner, key_id=key_id(key))
    named = [*keys, {"name": "bob", "key": "b"}, {"name": "cora", "key": "c"}]
    after = make_config(tmp_path, serving={"api_keys": named}, policies=policies)
    assert namesakes(store, before) == ()
    assert namesakes(store, after) == ("bob",)  # an admin's key may speak for Cora
    assert namesakes(store, make_config(tmp_path, serving={"api_keys": named})) == ()
    dan = make_config(tmp_path, serving={"api_keys": [{"name": "dan", "key": "d"}]}, policies=policies)
    Conversation(store, "s-dan").turn("t-dan", owner="dan", key_id="local")
    assert namesakes(store, dan) == ("dan",)  # whoever asked before there were keys
    erin = make_config(tmp_path, serving={"api_keys": [{"name": "erin", "key": "e"}]}, policies=policies)
    talk = Conversation(store, "s-erin")
    talk.answer(talk.ask("t-erin", owner="erin", key_id="local"), reconstructed=True)  # as an import with --user is
    assert namesakes(store, erin) == ()
    report = owners_report(store, after, time.time())
    assert report is not None
    (warning,) = (words for words in report.words() if words.startswith("warning"))
    assert "the API key bob has the policy of a user bob for whom others spoke" in warning
    store.close()


def one_policy_for_all(run_dir: Path) -> None:
    config = config_of(run_dir)
    write_private_json(config.model_copy(update={"policies": type(config.policies)()}), child_config_path(run_dir))


def test_with_one_policy_for_all_what_is_said_of_an_owners_counts_later(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_policy_for_all(run_dir)
    later = "\nThis counts once policies.per is user or key again: with policies.per = none nothing of ann's serves\n"
    said = run(capsys, run_dir, "policy", "pin", "policy-v1")
    assert said.endswith(f"until: openclaw-rl policy unpin --user ann{later}")
    said = run(capsys, run_dir, "policy", "unpin", "--user", "ann")
    assert said == f"policy-v1 may be followed by newer ones again{later}"
    said = run(capsys, run_dir, "policy", "rollback", "base", "--user", "ann")
    assert said == f"base serves, in place of policy-v1; training goes on from it{later}"
    assert run(capsys, run_dir, "policy", "rollback", "base", "--user", "ann").endswith(f"is given up{later}")
    assert (in_service(run_dir, "ann"), in_service(run_dir, "bob")) == (0, 2)
    assert "This counts" not in run(capsys, run_dir, "policy", "rollback", "base")
    for asked in (("rollback", "base"), ("pin", "base"), ("pin", "serving")):
        said = run(capsys, run_dir, "policy", *asked, "--user", "dan", code=2)
        assert "dan has no policy of their own, with policies.per = none nor from before" in said
    assert run(capsys, run_dir, "policy", "unpin", "--user", "dan") == "no version was pinned\n"


def test_what_up_advises_where_nobodys_policy_fits_can_be_done(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the last `up` was with one policy for all."""
    one_policy_for_all(run_dir)
    config = config_of(run_dir)
    lora = config.training.lora.model_copy(update={"rank": 2 * config.training.lora.rank})
    asked = config.model_copy(update={"training": config.training.model_copy(update={"lora": lora})})
    told: list[str] = []
    with pytest.raises(ConfigError) as refused:
        check_owners(asked, told.append)
    advised = str(refused.value).rpartition("openclaw-rl ")[2]
    for owner in ("ann", "bob"):
        run(capsys, run_dir, *advised.replace("NAME", owner).split())
    check_owners(asked, told.append)
    assert told == []


@pytest.mark.parametrize("action", [("rollback", "base"), ("pin", "base"), ("unpin",)])
def test_a_slip_in_a_name_is_not_silent(
    capsys: pytest.CaptureFixture[str], run_dir: Path, action: tuple[str, ...]
) -> None:
    """It may be meant for somebody who is yet to come, so it is done; the one who was meant goes on as before."""

    def said(user: str) -> str:
        capsys.readouterr()
        assert main(["policy", *action, "--user", user, "--run-dir", str(run_dir)]) == 0
        return capsys.readouterr().err

    assert "nobody called anm has a policy or a session here; the nearest name is ann" in said("anm")
    assert said("ann") == ""
