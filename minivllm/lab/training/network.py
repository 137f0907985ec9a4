"""The network in training: transformers' Qwen2, with start values that let circuits appear.

The attention function leaves a layer's queries and keys where `pointers.py` finds them, to
supervise attention with them.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

ROPE_THETA = 1e8


def attend_and_hand_out(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object
) -> tuple[Tensor, None]:
    """Causal attention as transformers calls it; q and k [batch, heads, length, d] stay behind.

    They lie on the module, not in a dictionary by layer: all layers run the same compiled code.
    """
    module.handed_out = query, key
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return mixed.transpose(1, 2), None


AttentionInterface.register("hand_out", attend_and_hand_out)


def make_network(vocab_size: int, sizes: dict[str, int], seed: int) -> Qwen2ForCausalLM:
    """A network with start values; `sizes` are widths and numbers as Qwen2Config names them."""
    config = Qwen2Config(
        vocab_size=vocab_size,
        **sizes,
        num_key_value_heads=sizes["num_attention_heads"],
        max_position_embeddings=8192,
        rope_theta=ROPE_THETA,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    )
    network = AutoModelForCausalLM.from_config(config, attn_implementation="hand_out")
    torch.manual_seed(seed)
    set_start_values(network)
    return network


@torch.no_grad()
def set_start_values(network: Qwen2ForCausalLM) -> None:
    """A start from which copying appears quickly.

    Embeddings have unit size and what the layers add is zero at first: the identity of a token,
    which is what copying is about, is not drowned in the residual stream. The small final norm
    keeps the first logits small nevertheless. Heads of layer 0 look back.
    """
    for name, parameter in network.named_parameters():
        if "embed_tokens" in name:
            nn.init.normal_(parameter)
        elif "o_proj" in name or "down_proj" in name or name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.5 / math.sqrt(parameter.shape[1]))
    nn.init.constant_(network.model.norm.weight, 0.05)
    for head in range(network.config.num_attention_heads - 1):
        let_look_back(network, head, offset=head + 1)


@torch.no_grad()
def let_look_back(network: Qwen2ForCausalLM, head: int, offset: int, strength: float = 6.0) -> None:
    """Make a head of layer 0 prefer the token `offset` back, by its biases alone.

    Rotary attention scores a constant key k and query q by sum_w k q cos(w (distance)) when the
    query is the key rotated by `offset` positions: largest exactly at that distance. Only the
    fast frequencies are used; the slow ones cannot tell neighbours apart.
    """
    attention = network.model.layers[0].self_attn
    frequencies = network.model.rotary_emb.inv_freq
    fast = frequencies > 0.02
    angle = frequencies * offset
    half = len(frequencies)
    start = head * 2 * half
    attention.k_proj.bias[start : start + half] = strength * fast
    attention.q_proj.bias[start : start + half] = strength * fast * angle.cos()
    attention.q_proj.bias[start + half : start + 2 * half] = -strength * fast * angle.sin()


@torch.no_grad()
def let_copy(network: Qwen2ForCausalLM, layer: int, head: int) -> None:
    """Start a head as a copier: what it reads of a token is what it writes (V, O = P, P^T).

    With tied embeddings the copied part of a token's identity is a vote for that token.
    """
    attention = network.model.layers[layer].self_attn
    size = attention.head_dim
    projection = nn.init.orthogonal_(torch.empty(size, network.config.hidden_size))
    attention.v_proj.weight[head * size : (head + 1) * size] = projection
    attention.o_proj.weight[:, head * size : (head + 1) * size] = projection.T


@torch.no_grad()
def let_match(
    network: Qwen2ForCausalLM, layer: int, head: int, collector: int, strength: float = 3.0
) -> None:
    """Start a head as a matcher of what head `collector` of the layer before has copied.

    A quarter of the head's dimensions, of those that hardly rotate, compare the collected
    vectors: queries and keys project them in the same random way, so equal ones attract.
    """
    attention = network.model.layers[layer].self_attn
    size = attention.head_dim
    collected = network.model.layers[layer - 1].self_attn.v_proj.weight
    directions = nn.init.orthogonal_(torch.empty(size // 4, size))
    rows = strength * directions @ collected[collector * size : (collector + 1) * size]
    slowest = torch.cat((torch.arange(size * 3 // 8, size // 2),
                         torch.arange(size * 7 // 8, size))) + head * size  # fmt: skip
    attention.q_proj.weight[slowest] = rows
    attention.k_proj.weight[slowest] = rows
