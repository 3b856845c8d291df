"""What `status` says of the last step's version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from openclaw_rl.store import Store
from openclaw_rl.supervision.status import collect, render
from openclaw_rl.types import VersionState
from tests.store.helpers import candidate, step_record, to_sample
from tests.supervision.test_units import NOW, prepare_state

SHORT = {"probe_tokens": 2.0, "probe_base_tokens": 24.0}


def test_answers_far_shorter_than_the_bases_have_a_line_of_their_own(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.sqlite")
    prepare_state(tmp_path, "http://127.0.0.1:1/v1")
    to_sample(store, "t1", "t2", "t3", "t4", "t5")
    store.samples.claim(5, 60.0)

    def warned(step: int, metrics: Mapping[str, float], *, refused: bool = False) -> list[str]:
        version = candidate(step)
        if refused:
            version = replace(version, state=VersionState.REJECTED, reason="language")
        store.samples.commit_step(replace(step_record(step, f"t{step}"), metrics=metrics), version)
        return [line for line in render(collect(tmp_path, NOW), NOW).splitlines() if line.startswith("  warning")]

    assert warned(1, {"loss": 0.5}) == []
    assert warned(2, SHORT) == [
        "  warning   policy-v2 may answer too shortly: its probe answers have 2.0 tokens on average, "
        "those of the base 24.0"
    ]
    assert warned(3, SHORT, refused=True) == []
    assert warned(4, {**SHORT, "probe_tokens": 12.0, "gate_probes_skipped": 0.0}) == []
    assert warned(5, {"gate_probes_skipped": 1.0}) == [
        "  warning   policy-v5 was not heard by the gate: no prompt of its batch left room for a probe answer"
    ]
    store.close()
