"""A grammar's bitmask meets the logits: what may not come becomes impossible.

This is done before the sampler sees them, so reported logprobs are those under the grammar.
(vLLM: apply_grammar_bitmask in vllm/v1/structured_output/utils.py)
"""

from __future__ import annotations

import torch

from minivllm.scheduling.output import GrammarOutput
from minivllm.tensors import make_tensor


def apply_grammar_bitmask(
    logits: torch.Tensor, seq_ids: list[str], grammar_output: GrammarOutput
) -> list[int]:
    """Mask, in place, the rows of sequences that have a grammar.

    Args:
        logits: float32 ``[n, vocab]``.
        seq_ids: whose row each is.
        grammar_output: a row of bits for each of those that have a grammar.

    Returns:
        The rows in which nothing is left.
    """
    place = {seq_id: i for i, seq_id in enumerate(grammar_output.structured_output_request_ids)}
    rows = [row for row, seq_id in enumerate(seq_ids) if seq_id in place]
    bitmask = grammar_output.grammar_bitmask[[place[seq_ids[row]] for row in rows]]
    words = make_tensor(bitmask, "int32", logits.device)
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    bits = (words[:, :, None] >> shifts) & 1  # [m, words, 32]
    forbidden = bits.flatten(1)[:, : logits.shape[1]] == 0
    index = make_tensor(rows, "int64", logits.device)
    logits[index] = logits[index].masked_fill(forbidden, -torch.inf)
    return [row for row, one in zip(rows, bitmask, strict=True) if not one.any()]
