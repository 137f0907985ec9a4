"""Notebook 12: Sampling: from logits to a token."""
