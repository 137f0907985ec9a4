"""The training of the embedded model: ``python -m minivllm.embedded.training.train``."""
