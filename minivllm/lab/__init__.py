"""What looks at the engine, which imports none of it.

Simulator, figures, exercises and benchmarks; the oracle, and how the embedded model was trained.
"""
