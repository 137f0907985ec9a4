"""Attention supervision: teaching chosen heads where to look.

The plain language-model loss finds a lookup circuit of several layers only after a very long
time, because no part of it helps before the others exist. The text generator knows where each
head should look, so a second loss (used in training only; the model stays a plain Qwen2) asks
that of one head per kind of pointer:

layer 0   three heads look 1, 2 and 3 tokens back (by their start values, without supervision)
layer 2   `row`: tokens of a row, and of an answer, collect the name they belong to;
          `column`: cells find their header, answers the column they are about;
          `id`, `id_end`: the token behind a name collects the first and last token of the ID
layer 3   `question`: while the answer restates a name, look at it in the question;
          `cell`: look at the next token of the cell asked for (same row, column and last token);
          (a third such head is left free, to look one token further: whether a space is the
          cell's last token shows only behind it);
          for an ID that is the token behind the name, and for what is missing the first token

A network of three layers, a draft, has them a layer earlier.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen2ForCausalLM

from minivllm.lab.training.network import let_copy, let_match


@dataclass(frozen=True)
class Head:
    layer: int
    index: int


HEADS: dict[str, tuple[Head, ...]] = {
    "row": (Head(2, 0),),
    "column": (Head(2, 1),),
    "id": (Head(2, 2),),
    "id_end": (Head(2, 3),),
    "question": (Head(3, 0),),
    "cell": (Head(3, 1), Head(3, 2)),
}
FREE_HEAD = Head(3, 3)
COPYING = ("row", "id", "id_end", "question", "cell")


def layer_of(head: Head, network: Qwen2ForCausalLM) -> int:
    """The layer that has this head; of four layers and more, the head's own."""
    return head.layer - max(0, 4 - network.config.num_hidden_layers)


def start_circuits(network: Qwen2ForCausalLM) -> None:
    """Start values: some heads copy tokens, and `cell` compares the names that `row` copied."""
    copying = [head for kind in COPYING for head in HEADS[kind]] + [FREE_HEAD]
    for head in copying:
        let_copy(network, layer_of(head, network), head.index)
    for head in (HEADS["cell"][1], FREE_HEAD):
        collector = HEADS["row"][0].index
        let_match(network, layer_of(head, network), head.index, collector=collector)


@dataclass
class PointerBatch:
    """The pointers of one kind in a batch, each row padded: all tensors [batch, most]."""

    queries: Tensor
    first: Tensor
    stop: Tensor
    valid: Tensor


def pointer_scores(q: Tensor, k: Tensor, batch: PointerBatch) -> tuple[Tensor, Tensor]:
    """Log attention of one head at the pointers' queries, and which keys are right.

    q, k [batch, length, head_dim] -> (log probabilities, wanted keys), both [batch, most, length]
    """
    positions = torch.arange(q.shape[1])
    chosen = torch.take_along_dim(q, batch.queries[..., None], dim=1)
    scores = (chosen @ k.transpose(1, 2)).float() / q.shape[-1] ** 0.5
    scores = scores.masked_fill(positions > batch.queries[..., None], -1e9)
    wanted = (positions >= batch.first[..., None]) & (positions < batch.stop[..., None])
    return F.log_softmax(scores, dim=-1), wanted


def pointer_loss(
    network: Qwen2ForCausalLM, pointers: dict[str, PointerBatch]
) -> tuple[Tensor, dict[str, float]]:
    """Mean over kinds of the cross-entropy to an even look at the wanted keys, in the last pass.

    Also returns, per kind, the share of attention that lies on the wanted keys.
    """
    losses = []
    shares = {}
    for kind, batch in pointers.items():
        for head in HEADS[kind]:
            attention = network.model.layers[layer_of(head, network)].self_attn
            q, k = (side[:, head.index] for side in attention.handed_out)
            log_attention, wanted = pointer_scores(q, k, batch)
            log_attention = log_attention[batch.valid]
            wanted = wanted[batch.valid]
            losses.append(-(log_attention * wanted).sum(-1).div(wanted.sum(-1)).mean())
            with torch.no_grad():
                shares[kind] = (log_attention.exp() * wanted).sum(-1).mean().item()
    return torch.stack(losses).mean(), shares
