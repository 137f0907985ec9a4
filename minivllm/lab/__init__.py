"""Simulator, figures and benchmarks: they look at the engine, which imports none."""
