"""For all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long a test may take is pytest-timeout's affair: a machine that others use is slow now and then, and an example
# that took long once and not again would fail as unreliable.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
