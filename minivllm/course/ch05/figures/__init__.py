"""Figures of notebook 05."""
