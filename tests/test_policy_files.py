"""What a version's directory holds."""

from pathlib import Path

import pytest

from openclaw_rl.policy_files import (
    MANIFEST,
    CorruptPolicy,
    UnreadablePolicy,
    Weights,
    WeightsKind,
    verify_manifest,
    weights_of,
    write_manifest,
)
from tests.unreadable import FAILING, failing, without_rights

needs_failing = pytest.mark.skipif(not FAILING.exists(), reason="needs /proc/self/mem")


@pytest.mark.parametrize(
    ("inner", "file", "kind"),
    [
        ("", "adapter_config.json", WeightsKind.LORA),
        ("adapter", "adapter_config.json", WeightsKind.LORA),
        ("", "config.json", WeightsKind.FULL),
        ("model", "config.json", WeightsKind.FULL),
    ],
)
def test_weights_are_found_in_a_directory_or_in_a_checkpoint(
    tmp_path: Path, inner: str, file: str, kind: WeightsKind
) -> None:
    directory = tmp_path / inner
    directory.mkdir(exist_ok=True)
    (directory / file).write_text("{}")
    assert weights_of(tmp_path) == Weights(kind=kind, directory=directory)


def test_a_directory_without_weights_is_no_version(tmp_path: Path) -> None:
    with pytest.raises(CorruptPolicy, match="neither an adapter nor a model"):
        weights_of(tmp_path)


@needs_failing
@pytest.mark.parametrize("name", ["a", MANIFEST])
def test_a_file_that_the_disk_does_not_give_is_not_taken_for_a_damaged_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_text("x")
    write_manifest(tmp_path, {})
    with failing(tmp_path / name):
        with pytest.raises(UnreadablePolicy) as caught:
            verify_manifest(tmp_path)
        assert str(caught.value) == f"{tmp_path / name} cannot be read (Input/output error)"
    verify_manifest(tmp_path)


@pytest.mark.parametrize("closed", ["inner", "inner/a"])
def test_neither_is_one_that_belongs_to_somebody_else(tmp_path: Path, closed: str) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a").write_text("x")
    write_manifest(tmp_path, {})
    with without_rights(tmp_path / closed), pytest.raises(UnreadablePolicy, match=r"inner.* \(Permission denied\)"):
        verify_manifest(tmp_path)
    verify_manifest(tmp_path)


def test_nor_a_directory_that_nobody_may_look_into(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with without_rights(tmp_path / "adapter"), pytest.raises(UnreadablePolicy, match=r"Permission denied"):
        weights_of(tmp_path)


@pytest.mark.parametrize("content", ["[]", '{"format": 1}', '{"format": 1, "files": [], "about": {}}', "{"])
def test_what_is_no_manifest_is_damage(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(CorruptPolicy, match=MANIFEST):
        verify_manifest(tmp_path)
