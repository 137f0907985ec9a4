"""Notebook A5: A real model."""
