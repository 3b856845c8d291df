"""Fakes, named so: for tests, benchmarks and quick trials."""
