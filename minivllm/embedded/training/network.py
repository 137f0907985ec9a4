"""The training-side Qwen2: the arithmetic of `transformers`' model in one short file.

Parameter names and shapes are those of ``Qwen2ForCausalLM``, so ``state_dict()`` *is* the
checkpoint. Two things make it worth writing again: the queries and keys of chosen layers can be
handed out (`pointers.py` supervises attention with them), and the vocabulary projection is done
only at the positions that carry loss.
"""

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of the network; ``head_dim`` is always ``hidden_size / heads`` as in Qwen2."""

    vocab_size: int
    hidden_size: int = 256
    intermediate_size: int = 512
    layers: int = 6
    heads: int = 4
    rope_theta: float = 1e8
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 8192

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    def as_dict(self) -> dict:
        return asdict(self)


def rope_frequencies(config: NetworkConfig) -> Tensor:
    """Rotary angle per position of each pair of dimensions, fastest first: [head_dim / 2]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    return 1.0 / config.rope_theta**exponents


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [batch, heads, length, head_dim]; cos, sin [length, head_dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        size, self.heads = config.hidden_size, config.heads
        self.q_proj = nn.Linear(size, size)
        self.k_proj = nn.Linear(size, size)
        self.v_proj = nn.Linear(size, size)
        self.o_proj = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [batch, length, size] -> (output like x, q and k [batch, heads, length, d])."""
        batch, length, size = x.shape
        q, k, v = (
            projection(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, size)), q, k


class MLP(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attended, q, k = self.self_attn(self.input_layernorm(x), cos, sin)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), q, k


class Decoder(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Network(nn.Module):
    """The whole model; the output projection is the embedding (tied), so it has no weight."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.register_buffer("frequencies", rope_frequencies(config), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A start from which copying appears quickly.

        Embeddings have unit size and what the layers add is zero at first: the identity of a
        token, which is what copying is about, is not drowned in the residual stream. The small
        final norm keeps the first logits small nevertheless. Heads of layer 0 look back.
        """
        for name, parameter in self.named_parameters():
            if "embed_tokens" in name:
                nn.init.normal_(parameter)
            elif "o_proj" in name or "down_proj" in name or name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.5 / math.sqrt(parameter.shape[1]))
        nn.init.constant_(self.model.norm.weight, 0.05)
        for head in range(self.config.heads - 1):
            self._look_back(head, offset=head + 1)

    @torch.no_grad()
    def _look_back(self, head: int, offset: int, strength: float = 6.0) -> None:
        """Make a head of layer 0 prefer the token `offset` back, by its biases alone.

        Rotary attention scores a constant key k and query q by sum_w k q cos(w (distance)) when
        the query is the key rotated by `offset` positions: largest exactly at that distance. Only
        the fast frequencies are used; the slow ones cannot tell neighbours apart.
        """
        attention, half = self.model.layers[0].self_attn, self.config.head_dim // 2
        fast = self.frequencies > 0.02
        angle = self.frequencies * offset
        start = head * self.config.head_dim
        attention.k_proj.bias[start : start + half] = strength * fast
        attention.q_proj.bias[start : start + half] = strength * fast * angle.cos()
        attention.q_proj.bias[start + half : start + 2 * half] = -strength * fast * angle.sin()

    @torch.no_grad()
    def let_copy(self, layer: int, head: int) -> None:
        """Start a head as a copier: what it reads of a token is what it writes (V, O = P, P^T).

        With tied embeddings the copied part of a token's identity is a vote for that token.
        """
        attention, size = self.model.layers[layer].self_attn, self.config.head_dim
        projection = nn.init.orthogonal_(torch.empty(size, self.config.hidden_size))
        attention.v_proj.weight[head * size : (head + 1) * size] = projection
        attention.o_proj.weight[:, head * size : (head + 1) * size] = projection.T

    @torch.no_grad()
    def let_match(self, layer: int, head: int, collector: int, strength: float = 3.0) -> None:
        """Start a head as a matcher of what head `collector` of the layer before has copied.

        A quarter of the head's dimensions, of those that hardly rotate, compare the collected
        vectors: queries and keys project them in the same random way, so equal ones attract.
        """
        size = self.config.head_dim
        collected = self.model.layers[layer - 1].self_attn.v_proj.weight
        directions = nn.init.orthogonal_(torch.empty(size // 4, size))
        rows = strength * directions @ collected[collector * size : (collector + 1) * size]
        attention = self.model.layers[layer].self_attn
        slowest = torch.cat((torch.arange(size * 3 // 8, size // 2),
                             torch.arange(size * 7 // 8, size))) + head * size  # fmt: skip
        attention.q_proj.weight[slowest] = rows
        attention.k_proj.weight[slowest] = rows

    def forward(self, ids: Tensor, keep: frozenset[int] = frozenset()) -> tuple[Tensor, dict]:
        """ids [batch, length] -> (final hidden states, {layer: (q, k)} for layers in `keep`)."""
        angles = torch.arange(ids.shape[1])[:, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        x, kept = self.model.embed_tokens(ids), {}
        for index, layer in enumerate(self.model.layers):
            x, q, k = layer(x, cos, sin)
            if index in keep:
                kept[index] = (q, k)
        return self.model.norm(x), kept

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary scores of hidden states [..., size] -> [..., vocab_size]."""
        return F.linear(hidden, self.model.embed_tokens.weight)
