"""Notebook 07: Chunked prefill."""
