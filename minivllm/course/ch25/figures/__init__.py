"""Figures of notebook 25."""
