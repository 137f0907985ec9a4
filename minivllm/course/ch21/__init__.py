"""Notebook 21: Serving: one engine, many clients."""
