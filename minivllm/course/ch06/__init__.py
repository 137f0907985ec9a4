"""Notebook 06: Preemption: when the blocks run out."""
