"""Notebook 04: Copy-on-write: parallel sampling."""
