"""Figures of notebook 02."""
