from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import main
from benchmarks.hints import STYLES

from openclaw_rl.testing.tiny_model import build_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("placement", ["user", "system"])
def test_every_style_is_measured(tiny: Path, placement: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With random weights: the figures mean nothing, but all of them are there, and hints change them."""
    assert main(["hints", "--model-path", str(tiny), "--placement", placement, "--json"]) == 0
    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [style["style"] for style in figures["styles"]] == [style.name for style in STYLES]
    for style, measured in zip(STYLES, figures["styles"], strict=True):
        assert measured["pairs"] == len(style.hints) * len(style.answers)
        assert 0 <= measured["told_apart"] <= measured["pairs"]
        assert measured["in_style"] != 0.0
        assert measured["own"] != 0.0
        assert measured["in_style"] != measured["out_of_style"]


def test_without_json_it_prints_a_table(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hints", "--model-path", str(tiny)]) == 0
    shown = capsys.readouterr().out
    assert all(f"| {style.name} |" in shown for style in STYLES)
