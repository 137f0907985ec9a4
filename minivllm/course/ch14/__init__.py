"""Notebook 14: Speculative decoding: guess, then verify."""
