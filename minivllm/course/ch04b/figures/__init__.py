"""Figures of notebook 04b."""
