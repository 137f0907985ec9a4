"""Notebook 13: Memory: where the gigabytes go."""
