"""Poolers and heads: from the hidden states of a prompt to the numbers that were asked for."""
