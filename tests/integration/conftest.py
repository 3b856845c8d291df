"""One deployment of real processes, shared by the tests that look at it from outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from openclaw_rl.store import Store
from openclaw_rl.supervision.deployment import Deployment
from openclaw_rl.testing.tiny_model import build_tiny_model
from tests.integration.support import connect, deployment_config

EPOCHS = 20
"""Passes over each batch of two: so many that a step of the tiny model lasts long enough to be seen and killed."""


@dataclass(frozen=True, kw_only=True)
class Living:
    """A deployment, a client of it, and its record."""

    deployment: Deployment
    client: openai.OpenAI
    store: Store


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def living(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    config = deployment_config(
        tmp_path_factory.mktemp("living") / "run",
        tiny_path,
        training={"epochs_per_batch": EPOCHS, "lr": 1e-3},
        supervisor={"restart_backoff_s": 2.0},
    )
    with Deployment(config) as deployment, connect(deployment.url) as client:
        store = Store.open(deployment.config.store_path)
        try:
            yield Living(deployment=deployment, client=client, store=store)
        finally:
            store.close()
