"""What looks at the engine, which imports none of it.

Simulator, figures and benchmarks; the oracle, and how the embedded model was trained.
"""
