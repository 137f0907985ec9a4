"""Quantizing a checkpoint: round to nearest, GPTQ, AWQ. ``minivllm quantize`` is its command."""
