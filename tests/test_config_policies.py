"""The section `policies`, and what it cannot be had together with."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from openclaw_rl.config import Config

KEYS = [{"name": "phone", "key": "secret"}]


def test_one_policy_for_all_by_default() -> None:
    assert Config().policies.per == "none"
    assert not Config().policies.owned


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({"policies": {"per": "key"}}, "serving.api_keys"),
        ({"policies": {"per": "user"}, "training": {"resume_from_checkpoint": "x"}}, "resume_from_checkpoint"),
        ({"policies": {"per": "user"}, "training": {"use_lora": False}}, "use_lora"),
        ({"policies": {"per": "user"}, "engine": {"replicas": 2}}, "needs one engine, not 2"),
        (
            {
                "policies": {"per": "user"},
                "engine": {"kind": "openai", "upstream_model": "m", "urls": ["http://a/v1", "http://b/v1"]},
            },
            "needs one engine, not 2",
        ),
        ({"policies": {"per": "user"}, "rollout": {"rollout_function_path": "mine.f"}}, "serving.api_keys"),
        ({"policies": {"per": "session"}}, "per"),
    ],
)
def test_what_cannot_be_had_is_an_error(tree: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Config.model_validate(tree)


def test_a_key_of_ones_own_is_enough() -> None:
    assert Config.model_validate({"policies": {"per": "key"}, "serving": {"api_keys": KEYS}}).policies.owned
