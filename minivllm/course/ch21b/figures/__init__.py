"""Figures of notebook 21b."""
