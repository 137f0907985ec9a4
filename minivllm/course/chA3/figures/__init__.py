"""Figures of notebook A3."""
