"""Notebook 08: Automatic prefix caching."""
