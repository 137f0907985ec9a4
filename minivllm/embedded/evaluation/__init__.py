"""What the embedded model can do: ``python -m minivllm.embedded.evaluation.evaluate``."""
