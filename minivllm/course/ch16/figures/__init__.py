"""Figures of notebook 16."""
