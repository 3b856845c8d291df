"""The section `policies`, and what it cannot be had together with."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from openclaw_rl.config import Config
from openclaw_rl.config_policies import PoliciesConfig, check_policies

KEYS = [{"name": "phone", "key": "secret"}]


def test_one_policy_for_all_by_default() -> None:
    assert Config().policies.per == "none"
    assert not Config().policies.owned


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({"policies": {"per": "key"}}, "serving.api_keys"),
        ({"policies": {"per": "user"}, "training": {"resume_from_checkpoint": "x"}}, "resume_from_checkpoint"),
        ({"policies": {"per": "session"}}, "per"),
    ],
)
def test_what_cannot_be_had_is_an_error(tree: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Config.model_validate(tree)


def test_a_key_of_ones_own_is_enough() -> None:
    assert Config.model_validate({"policies": {"per": "key"}, "serving": {"api_keys": KEYS}}).policies.owned


def test_whole_models_are_nobodys_own() -> None:
    with pytest.raises(ValueError, match="use_lora"):
        check_policies(PoliciesConfig(per="user"), keys=0, resume_from="auto", use_lora=False)
    check_policies(PoliciesConfig(), keys=0, resume_from="x", use_lora=False)
