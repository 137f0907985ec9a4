"""Figures of notebook 07."""
