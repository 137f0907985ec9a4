"""Notebook 26: X-ray a real vLLM."""
