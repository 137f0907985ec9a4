"""The oracle: what "right" means. No cache, no blocks, no batch; everything anew for every token.

It shares the weights and the layers' arithmetic with the engine and nothing else: attention is a
dense matrix, and a token is chosen by ``sampling/reference.py``. Tests hold the engine to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch

from minivllm.models.decoder import DecoderForCausalLM
from minivllm.models.layers import rotary_tables, rotate
from minivllm.request import Request
from minivllm.sampling.reference import choose


@dataclass
class OracleOutput:
    """What a request must produce, and how clear each choice was: ``margins[i]`` says how far the
    numbers may be off before token ``i`` would be another one.
    """

    token_ids: list[int]
    margins: list[float]
    finish_reason: str
    stop_reason: int | None


@torch.inference_mode()
def next_token_logits(model: DecoderForCausalLM, token_ids: list[int]) -> torch.Tensor:
    """float32 ``[vocab]``: one pass over all tokens, dense causal attention."""
    config, n = model.config, len(token_ids)
    device = model.lm_head.weight.device
    x = model.model.embed_tokens(torch.tensor(token_ids, device=device))
    positions = torch.arange(n, device=device)
    cos, sin = rotary_tables(positions, config.head_dim, config.rope_theta, x.dtype)
    future = torch.ones(n, n, dtype=torch.bool, device=device).triu(1)
    for layer in model.model.layers:
        attn = layer.self_attn
        h = layer.input_layernorm(x)
        q = rotate(attn.q_proj(h).view(n, config.num_heads, -1), cos, sin)
        k = rotate(attn.k_proj(h).view(n, config.num_kv_heads, -1), cos, sin)
        v = attn.v_proj(h).view(n, config.num_kv_heads, -1)
        k, v = (t.repeat_interleave(config.num_heads // config.num_kv_heads, 1) for t in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) * config.head_dim**-0.5
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        x = x + attn.o_proj(torch.einsum("hij,jhd->ihd", weights, v).reshape(n, -1))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.compute_logits(model.model.norm(x[-1:]))[0]


def run(
    model: DecoderForCausalLM, request: Request, max_model_len: int, index: int = 0
) -> OracleOutput:
    """Generate sample ``index`` of one request, alone."""
    params, generator = request.sampling_params, Random(request.seed + index)
    prompt, output, margins = request.prompt_token_ids, [], []
    while True:
        logits = next_token_logits(model, prompt + output).tolist()
        token, margin = choose(logits, params, prompt, output, generator)
        output.append(token)
        margins.append(margin)
        if token in request.eos_token_ids and not params.ignore_eos:
            return OracleOutput(output, margins, "stop", None)
        if token in (params.stop_token_ids or ()):
            return OracleOutput(output, margins, "stop", token)
        if len(output) == params.max_tokens or len(prompt) + len(output) >= max_model_len:
            return OracleOutput(output, margins, "length", None)
