"""Notebook 22: Metrics and honest benchmarks."""
