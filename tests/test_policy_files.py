"""What a version's directory holds."""

from pathlib import Path

import pytest

from openclaw_rl.policy_files import CorruptPolicy, Weights, WeightsKind, weights_of


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
