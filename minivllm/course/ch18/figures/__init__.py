"""Figures of notebook 18."""
