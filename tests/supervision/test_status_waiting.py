"""What `status` says of the samples that wait, where some were made under another `policies.per`."""

from __future__ import annotations

import time
from pathlib import Path

from openclaw_rl.config import Config, PoliciesConfig
from openclaw_rl.config_render import write_private_json
from openclaw_rl.store import Store
from openclaw_rl.supervision.status import collect
from tests.rollout.test_waiting import give
from tests.supervision.test_units import prepare_state


def test_samples_count_for_whom_they_are(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.sqlite")
    prepare_state(tmp_path, "http://127.0.0.1:1/v1")
    give(store, "ann", 8)
    give(store, "", 2)
    one = collect(tmp_path, time.time()).progress
    assert one is not None
    assert (one.samples_ready, one.due[:14]) == (2, "2 of 8 samples")
    write_private_json(Config(run_dir=tmp_path, policies=PoliciesConfig(per="user")), tmp_path / "config.json")
    owned = collect(tmp_path, time.time()).progress
    assert owned is not None
    assert (owned.samples_ready, owned.due) == (8, "1 of 1 owners with samples have a batch that is due")
    store.close()
