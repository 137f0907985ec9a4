"""Notebook A2: Measure your machine."""
