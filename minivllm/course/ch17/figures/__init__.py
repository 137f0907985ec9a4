"""Figures of notebook 17."""
