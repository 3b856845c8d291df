import pytest

pytest.register_assert_rewrite("tests.engines.contract", "tests.engines.harness")
