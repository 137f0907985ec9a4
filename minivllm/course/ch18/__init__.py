"""Notebook 18: Quantization: weights in a few bits."""
