"""Notebook 10: Paged attention in Triton."""
