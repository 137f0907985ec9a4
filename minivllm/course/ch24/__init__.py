"""Notebook 24: Pooling: an engine that never samples."""
