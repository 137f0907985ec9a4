"""Figures of notebook 27."""
