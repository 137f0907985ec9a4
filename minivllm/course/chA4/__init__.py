"""Notebook A4: Your first change in vLLM."""
