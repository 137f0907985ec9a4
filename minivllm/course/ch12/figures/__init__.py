"""Figures of notebook 12."""
