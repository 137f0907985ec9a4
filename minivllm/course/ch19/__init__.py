"""Notebook 19: KV quantization: the cache in a byte a number."""
