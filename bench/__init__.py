"""Benchmarks of posthouse: `python -m bench PART`."""
