"""Figures of notebook 20b."""
