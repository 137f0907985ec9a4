"""Figures of notebook 22."""
