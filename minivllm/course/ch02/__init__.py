"""Notebook 02: Contiguous slabs, and where the memory goes."""
