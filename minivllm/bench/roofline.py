"""The least time that some work can take on a machine of known peaks (Williams et al. 2009)."""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.bench.workloads import Round
from minivllm.models.model_config import ModelConfig


@dataclass(frozen=True)
class Work:
    """What must be computed and moved, whoever does it. Operations and bytes.

    Prompts may be computed at any time, so they count as arithmetic only. After that every answer
    grows by a token per step, and a step reads all weights and every context's K and V.
    """

    prefill_flops: float
    decode_flops: float
    decode_bytes: float

    def least_seconds(self, flops_per_s: float, bytes_per_s: float) -> float:
        """Prompts at the arithmetic peak, then decodes at whichever peak is reached first."""
        decode = self.least_decode_seconds(flops_per_s, bytes_per_s)
        return self.prefill_flops / flops_per_s + decode

    def least_decode_seconds(self, flops_per_s: float, bytes_per_s: float) -> float:
        """Decodes alone: on most machines the time to read weights, K and V."""
        return max(self.decode_flops / flops_per_s, self.decode_bytes / bytes_per_s)


def work_of(
    config: ModelConfig,
    rounds: list[Round],
    bytes_per_number: int,
    num_cached_tokens: int = 0,
    cache_bytes: int = 0,
) -> Work:
    """Count the work of a workload, for the Llama family: an MLP has three matrices.

    Args:
        config: the model's shape.
        rounds: of requests; in a round all decode together, from the first step to the last.
        bytes_per_number: of weights, K and V.
        num_cached_tokens: of all prompts, those that a prefix cache had; they cost nothing.
        cache_bytes: of the processor; weights, or K and V, that fit need not come from memory.
    """
    c = config
    hidden, heads, kv_heads = c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    layer = hidden * (heads + 2 * kv_heads) + heads * hidden + 3 * hidden * c.intermediate_size
    layers, head = c.num_layers * layer, hidden * c.vocab_size
    per_pair = 4 * c.num_layers * heads  # operations for a token that looks at another
    requests = [request for requests in rounds for request in requests]
    prompts = [len(request.prompt_token_ids) for request in requests]
    # cached tokens are taken to be spread evenly, and to be the first of each prompt
    cached = num_cached_tokens / len(requests)
    prefill = 2 * layers * (sum(prompts) - num_cached_tokens) + 2 * head * len(requests)
    prefill += per_pair * sum((p * (p + 1) - cached * (cached + 1)) / 2 for p in prompts)
    # the k-th answer token (k from 2 on) looks at the prompt and k - 1 answer tokens
    num_decodes = sum(r.n * (r.max_tokens - 1) for r in requests)
    contexts = sum(
        r.n * ((r.max_tokens - 1) * p + r.max_tokens * (r.max_tokens - 1) / 2)
        for r, p in zip(requests, prompts, strict=True)
    )
    weights = (layers + head) * bytes_per_number
    num_steps = sum(max(request.max_tokens for request in batch) - 1 for batch in rounds)
    kv = 2 * c.num_layers * kv_heads * bytes_per_number
    in_memory = sum(r.n * r.max_tokens + p for r, p in zip(requests, prompts, strict=True)) * kv
    decode_bytes = (weights * num_steps if weights > cache_bytes else 0) + (
        contexts * kv if in_memory > cache_bytes else 0
    )
    return Work(prefill, 2 * (layers + head) * num_decodes + per_pair * contexts, decode_bytes)
