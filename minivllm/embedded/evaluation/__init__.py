"""Evaluation of the embedded model: ``python -m minivllm.embedded.evaluation.evaluate``."""
