"""Figures of notebook 20."""
