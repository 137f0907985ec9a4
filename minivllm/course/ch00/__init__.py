"""Notebook 00: Quickstart: a language model server on your laptop."""
