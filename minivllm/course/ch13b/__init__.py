"""Notebook 13b: CUDA graphs: start a whole step with one call."""
