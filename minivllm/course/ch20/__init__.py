"""Notebook 20: Parallelism: one model on several devices."""
