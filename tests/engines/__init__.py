import pytest

pytest.register_assert_rewrite(
    *(f"tests.engines.{name}" for name in ("contract", "contract_limits", "harness", "over_http", "vllm_promises"))
)
