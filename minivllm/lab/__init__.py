"""What looks at the engine: simulator, figures, exercises, benchmarks. The engine imports none."""
