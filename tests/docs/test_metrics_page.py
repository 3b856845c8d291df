"""The page of metrics has the table that the code makes."""

from __future__ import annotations

from openclaw_rl.training.metric_names import table
from tests.docs.pages import ROOT


def test_the_table_is_that_of_the_code() -> None:
    """Made by `python -c "from openclaw_rl.training.metric_names import table; print(table())"`."""
    assert f"\n\n{table()}\n\n" in (ROOT / "docs" / "12-metrics.md").read_text(encoding="utf-8")
