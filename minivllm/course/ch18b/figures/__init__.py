"""Figures of notebook 18b."""
