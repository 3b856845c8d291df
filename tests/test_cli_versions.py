"""Versions as lines: whole at any width, and names as they are, whatever is in them."""

from __future__ import annotations

import pytest

from openclaw_rl.cli_versions import as_json, listing
from openclaw_rl.types import BASE_VERSION, PolicyVersion, StepRecord, VersionState


def version(number: int, owner: str = "", **values: object) -> PolicyVersion:
    plain = {"state": VersionState.RETIRED, "path": None, "step": number, "created_at": 0.0}
    return PolicyVersion(version=number, owner=owner, **{**plain, **values})  # type: ignore[arg-type]


def listed(*versions: PolicyVersion, width: int | None = None, at_base: frozenset[str] = frozenset()) -> list[str]:
    steps = {
        one.version: StepRecord(
            step=one.step, version=one.version, sample_ids=("t1", "t2"), metrics={"mean_reward": -0.5},
            checkpoint="", seconds=1.0, created_at=0.0,
        )
        for one in versions
        if one.version != BASE_VERSION
    }  # fmt: skip
    since = {one.version: 0.0 for one in versions}
    return listing(versions, steps, since, at_base, width=width).splitlines()


@pytest.mark.parametrize("owner", ["[ann]", "[/a]", "[bold red]x[/]", "a\\[b]", ":smile:"])
def test_a_name_is_no_markup(owner: str) -> None:
    assert listed(version(1, owner))[1].split("  ")[1] == owner


def test_what_is_said_of_a_version_is_no_markup() -> None:
    (line,) = listed(version(1, reason="[/a]"))[1:]
    assert line.split()[-2:] == ["no", "[/a]"]


def test_nothing_moves_the_cursor_and_no_name_is_endless() -> None:
    line = listed(version(1, "a\x1b[2Jb\u202e" + "c" * 300))[1]
    assert line.isprintable()
    assert len(line) < 130


def test_no_name_is_broken_at_80_columns() -> None:
    owners = ["a-user-with-a-long-name@example.org", "bob", "漢字漢字"]
    rows = [version(123456 + number, owner, reason="mean_reward_fell") for number, owner in enumerate(owners)]
    lines = listed(*rows, width=80)
    assert len(lines) == 1 + 2 * len(rows)
    for at, (row, owner) in enumerate(zip(rows, owners, strict=True)):
        assert lines[1 + 2 * at].split()[:3] == [row.name, owner, "retired"]
        assert lines[2 + 2 * at] == "    mean_reward_fell"
    assert len(listed(*rows)) == 1 + len(rows), "where there is no terminal each version is one line"
    assert listed(version(1, reason="x"), width=80)[1].split()[-2:] == ["no", "x"]


def test_who_is_kept_at_the_base_is_told() -> None:
    base = version(BASE_VERSION, state=VersionState.SERVING)
    assert listed(base, at_base=frozenset({"ann"}))[1].endswith("  pinned for ann")
    many = frozenset(f"user{number}" for number in range(9))
    assert listed(base, at_base=many)[1].endswith("pinned for user0, user1, user2, 6 more")
    assert as_json(base, None, 0.0, {"bob", "ann"})["pinned_for"] == ["ann", "bob"]
    assert as_json(version(1, "ann", pinned=True), None, 0.0, set())["pinned_for"] == ["ann"]
