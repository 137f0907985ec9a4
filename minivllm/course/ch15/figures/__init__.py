"""Figures of notebook 15."""
