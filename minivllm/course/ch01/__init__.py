"""Notebook 01: The KV cache, and why."""
