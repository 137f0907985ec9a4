"""Notebook 03: Paged blocks and block tables."""
