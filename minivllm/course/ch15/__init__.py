"""Notebook 15: Structured outputs: only tokens that can still become an answer."""
