"""Numbers of a few bits in words of 32: how GPTQ, AWQ and compressed-tensors store weights."""

from __future__ import annotations

import torch

from minivllm.utils.validation import check


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Numbers in int32 words, the first in the lowest bits; they may cross from word to word.

    Args:
        words: int32 ``[..., num_words]``, a row of bits each.
        bits: of a number: 1 to 8.

    Returns:
        uint8 ``[..., num_words * 32 // bits]``.
    """
    mask = 2**bits - 1
    if 8 % bits == 0:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=words.device)
        rows = words.clone(memory_format=torch.contiguous_format)  # a single column's stride, too
        octets = rows.view(torch.uint8).unsqueeze(-1)
        return ((octets >> shifts) & mask).flatten(-2)
    # 3 bits: some begin in one word and end in the next
    starts = torch.arange(words.shape[-1] * 32 // bits, device=words.device) * bits
    first = starts // 32
    shift = starts % 32
    unsigned = words.long() & 0xFFFFFFFF
    following = unsigned[..., (first + 1).clamp(max=words.shape[-1] - 1)]
    numbers = (unsigned[..., first] >> shift) | (following << (32 - shift))
    return (numbers & mask).to(torch.uint8)


def pack(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Int32 words that ``unpack`` reads; ``bits`` divides 8.

    Args:
        numbers: ``[..., n]``, from 0 to ``2**bits - 1``.
        bits: of a number.

    Returns:
        int32 ``[..., n * bits // 32]``.
    """
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=numbers.device)
    octets = numbers.to(torch.uint8).unflatten(-1, (-1, 8 // bits)) << shifts
    octets = octets.sum(-1, dtype=torch.uint8).clone(memory_format=torch.contiguous_format)
    return octets.view(torch.int32)


def num_words(size: int, bits: int, what: str) -> int:
    """Number of words that hold ``size`` numbers.

    Raises:
        ValueError: if they do not fill them; ``what`` says which numbers they are.
    """
    ok = size * bits % 32 == 0
    allowed = f"whole words of 32 bits at {bits} bits each"
    check(ok, what, size, allowed)
    return size * bits // 32


def check_g_idx(g_idx: torch.Tensor, groups: int, what: str) -> bool:
    """Look at the group of each input: true if they are in order, and need not be kept.

    Raises:
        ValueError: for a group that has no scale.
    """
    for group in map(int, g_idx.aminmax()):
        allowed = f"from 0 to {groups - 1}, as there are {groups} groups"
        check(0 <= group < groups, what, group, allowed)
    inputs = torch.arange(len(g_idx), device=g_idx.device)
    return torch.equal(g_idx.long(), inputs // (len(g_idx) // groups))


def num_groups(size: int, group_size: int, what: str) -> int:
    """Number of groups of inputs that have a scale each; -1: all are one group.

    Raises:
        ValueError: if they do not divide the inputs; ``what`` says whose inputs they are.
    """
    group_size = size if group_size == -1 else group_size
    check(size % group_size == 0, what, size, f"a multiple of group_size {group_size}")
    return size // group_size
