"""Measurements that the documentation quotes: `uv run python -m benchmarks NAME`."""
