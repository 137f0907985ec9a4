"""Notebook 05: Continuous batching."""
