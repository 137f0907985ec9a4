"""Notebook 21b: A stream on the wire."""
