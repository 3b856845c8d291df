"""`policies.per` was set back to none: what belonged to somebody is open to nobody."""

from __future__ import annotations

import time
from pathlib import Path

from openclaw_rl.store import Store
from tests.gateway.conftest import running
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.test_owners import ask, publish, version_for


def test_nobody_gets_an_owners_version_that_the_engine_still_has(tmp_path: Path) -> None:
    """An engine of somebody else's outlives `policies.per`, with the owners' adapters in it."""
    engine = FakeEngine(loaded={1, 2})
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    before = Store.open(run_dir / "store.sqlite")
    publish(before, 1, "ann")
    publish(before, 2, "")
    before.close()
    with running(run_dir, engine) as gateway:
        assert version_for(gateway) == "2"
        listed = gateway.http.get("/v1/models").json()["data"]
        assert [model["id"] for model in listed] == ["policy", "base", "policy-v2"]
        assert gateway.http.get("/v1/models/policy-v1").status_code == 404
        refused = ask(gateway, model="policy-v1")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert version_for(gateway, model="policy-v2") == "2"
        publish(gateway.store, 3, "bob")  # not by a trainer of ours: it is seen when the engine is next looked at
        gateway.engine.loaded.add(3)
        time.sleep(1.5)
        assert ask(gateway, model="policy-v3").status_code == 404
