"""Notebook 06b: Swapping: K and V wait on the host."""
