"""Figures of notebook 14."""
