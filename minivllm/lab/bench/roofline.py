"""Roofline bound of a workload on a machine of known peaks (Williams et al. 2009).

What a token costs is counted once, in ``minivllm.lab.sim.cost``; here it is added up over a
workload.
"""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.lab.bench.workloads import Round
from minivllm.lab.sim.cost import Hardware, ModelShape, Work
from minivllm.models.model_config import ModelConfig


@dataclass(frozen=True)
class WorkloadWork:
    """FLOPs and bytes of a workload, prefill and decode apart.

    Prompts may be computed at any time, so they count as arithmetic only. After that every answer
    grows by a token per step, and a step reads all weights and every context's K and V.
    """

    prefill: Work
    decode: Work

    def least_seconds(self, machine: Hardware) -> float:
        """Prompts at the arithmetic peak, then decodes at whichever peak is reached first."""
        return machine.least_seconds(self.prefill) + machine.least_seconds(self.decode)


def shape_of(config: ModelConfig, bytes_per_number: int) -> ModelShape:
    """The matrices of the layers and the head, for the Llama family: an MLP has three.

    Vectors (norms, biases) and the embedding, of which a token reads a row, do not count.
    """
    c = config
    hidden = config.hidden_size
    heads, kv_heads = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    layer = hidden * (heads + 2 * kv_heads) + heads * hidden + 3 * hidden * c.intermediate_size
    return ModelShape(
        c.architecture,
        c.num_layers * layer + hidden * c.vocab_size,
        c.num_layers,
        num_heads=c.num_heads,
        num_kv_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        max_model_len=c.max_model_len,
        bytes_per_number=bytes_per_number,
    )


def work_of(
    config: ModelConfig,
    rounds: list[Round],
    bytes_per_number: int,
    num_cached_tokens: int = 0,
    cache_bytes: int = 0,
) -> WorkloadWork:
    """Count the work of a workload.

    Args:
        config: the model's shape.
        rounds: of requests; in a round all decode together, from the first step to the last.
        bytes_per_number: of weights, K and V.
        num_cached_tokens: of all prompts, those that a prefix cache had; they cost nothing.
        cache_bytes: of the processor; weights, or K and V, that fit need not come from memory.
    """
    shape = shape_of(config, bytes_per_number)
    requests = [request for requests in rounds for request in requests]
    prompts = [len(request.prompt_token_ids) for request in requests]
    # Only a prompt's last token goes through the head. Cached tokens are taken to be spread evenly,
    # and to be the first of each prompt.
    head = 2 * config.hidden_size * config.vocab_size
    cached = num_cached_tokens / len(requests)
    prefill = (shape.flops_per_token - head) * (sum(prompts) - num_cached_tokens)
    prefill += head * len(requests)
    prefill += shape.flops_per_attended * sum(
        (p * (p + 1) - cached * (cached + 1)) / 2 for p in prompts
    )
    # the k-th answer token (k from 2 on) looks at the prompt and k - 1 answer tokens
    num_decodes = sum(r.n * (r.max_tokens - 1) for r in requests)
    contexts = sum(
        r.n * ((r.max_tokens - 1) * p + r.max_tokens * (r.max_tokens - 1) / 2)
        for r, p in zip(requests, prompts, strict=True)
    )
    num_steps = sum(max(request.max_tokens for request in batch) - 1 for batch in rounds)
    num_kept = sum(r.n * r.max_tokens + p for r, p in zip(requests, prompts, strict=True))
    kv = shape.kv_bytes_per_token
    decode_bytes = (shape.weight_bytes * num_steps if shape.weight_bytes > cache_bytes else 0) + (
        kv * contexts if kv * num_kept > cache_bytes else 0
    )
    decode_flops = shape.flops_per_token * num_decodes + shape.flops_per_attended * contexts
    return WorkloadWork(Work(prefill, 0), Work(decode_flops, decode_bytes))
