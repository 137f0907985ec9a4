"""Notebook 11: Split-KV: many programs for one long sequence."""
