"""Notebook 14b: Proposers that learn: a draft model, Medusa, EAGLE."""
