"""Benchmarks that say where they ran, on what, how fast the machine is, and how near we come."""
