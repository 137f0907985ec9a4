"""Quantized weights: their formats, and where each is read."""
