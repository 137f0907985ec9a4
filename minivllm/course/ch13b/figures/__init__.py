"""Figures of notebook 13b."""
