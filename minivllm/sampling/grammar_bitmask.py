"""Grammar bitmask: set the logits of tokens that a grammar forbids to -inf.

This is done before the sampler sees them, so reported logprobs are those under the grammar. A row
in which nothing is left is found by the sampler, like any other without a finite logit.
(vLLM: apply_grammar_bitmask in vllm/v1/structured_output/utils.py)
"""

from __future__ import annotations

import numpy as np
import torch

from minivllm.scheduling.output import GrammarOutput
from minivllm.utils.tensors import make_tensor


def apply_grammar_bitmask(
    logits: torch.Tensor, seq_ids: list[str], grammar_output: GrammarOutput
) -> None:
    """Mask the logits of sequences that have a grammar, in place.

    Args:
        logits: float32 ``[n, vocab]``.
        seq_ids: whose row each is. One with drafts has several, one behind the other.
        grammar_output: a row of bits for each of those that have a grammar, in the same order.
    """
    with_grammar = set(grammar_output.structured_output_request_ids)
    rows = [row for row, seq_id in enumerate(seq_ids) if seq_id in with_grammar]
    forbidden = _forbidden(grammar_output.grammar_bitmask, logits.shape[1], logits.device)
    if len(rows) == len(seq_ids):
        logits.masked_fill_(forbidden, -torch.inf)
    else:
        index = make_tensor(rows, "int64", logits.device)
        logits[index] = logits[index].masked_fill(forbidden, -torch.inf)


def _forbidden(bitmask: np.ndarray, vocab_size: int, device: torch.device) -> torch.Tensor:
    """Unpack a bitmask: bool ``[m, vocab]``, True where a bit is 0. A GPU is sent the words."""
    if device.type == "cpu":
        octets = (~bitmask).view(np.uint8)
        bits = np.unpackbits(octets, axis=1, count=vocab_size, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))
    words = torch.from_numpy(bitmask).to(device)
    shifts = torch.arange(32, dtype=torch.int32, device=device)
    return ((words[:, :, None] >> shifts) & 1).flatten(1)[:, :vocab_size] == 0
