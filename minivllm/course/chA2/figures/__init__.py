"""Figures of notebook A2."""
