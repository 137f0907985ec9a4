"""Poolers: from the hidden states of a prompt to the numbers that a pooling request asks for.

A pooler is a method (which rows) and a head (what becomes of them). It is put on a model in the
place of the head that makes logits. (vLLM: vllm/model_executor/layers/pooler/)
"""
