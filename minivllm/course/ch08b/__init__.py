"""Notebook 08b: Prefix caching: preemption and salts."""
