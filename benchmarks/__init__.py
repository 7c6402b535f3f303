"""Benchmarks and torture of a whole broker process; not part of the installed package."""
