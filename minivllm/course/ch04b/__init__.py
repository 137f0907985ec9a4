"""Notebook 04b: Beam search: forks and frees in every step."""
