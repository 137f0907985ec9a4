"""Notebook 16: Tool calling: a call read out of a stream."""
