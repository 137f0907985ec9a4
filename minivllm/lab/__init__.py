"""Lab: simulator, figures, benchmarks, the oracle, training of the embedded model.

All of it looks at the engine, which imports none.
"""
