"""What is wrong with one owner's directory is told from what is everybody's."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from openclaw_rl.training.own_disk import check_writable, is_of_one_owner
from tests.unreadable import open_to_all, without_rights


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EIO])
def test_what_is_wrong_with_a_directory_is_its_owners(tmp_path: Path, number: int) -> None:
    root = tmp_path / "owner-a"
    for named in (root, root / "step-000001"):
        assert is_of_one_owner(OSError(number, "words", str(named)), root)
    for named in (tmp_path, tmp_path / "owner-ab"):
        assert not is_of_one_owner(OSError(number, "words", str(named)), root)
    assert not is_of_one_owner(OSError(number, "words"), root)
    with without_rights(tmp_path, 0o555):
        assert not is_of_one_owner(OSError(number, "words", str(root)), root)


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM]
)
def test_what_is_wrong_with_the_disk_or_the_process_is_everybodys(tmp_path: Path, number: int) -> None:
    root = tmp_path / "owner-a"
    assert not is_of_one_owner(OSError(number, "words", str(root / "step-000001")), root)


def test_a_directory_that_can_be_written_is_there_afterwards(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints" / "owner-a"
    check_writable(root)
    assert root.is_dir()


def test_one_that_may_not_be_written_is_named_and_the_one_above_first(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints" / "owner-a"
    check_writable(root)
    open_to_all(tmp_path)
    for directory in (root, root.parent):
        with without_rights(directory, 0o555), pytest.raises(PermissionError) as caught:
            check_writable(root)
        assert caught.value.filename == str(directory)
    root.rmdir()
    root.write_text("no directory")
    with pytest.raises(FileExistsError) as other:
        check_writable(root)
    assert other.value.filename == str(root)
