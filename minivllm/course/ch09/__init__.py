"""Notebook 09: Paged attention in PyTorch."""
