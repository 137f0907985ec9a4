"""Figures of notebook 24."""
