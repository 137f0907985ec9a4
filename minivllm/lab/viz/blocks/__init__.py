"""Blocks: a snapshot of their tables, and how one block, a pool and a table look."""
