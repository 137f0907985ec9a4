"""Figures of notebook 09."""
