"""Notebook A3: How a CPU kernel reads a block table."""
