"""Labs of notebook 10: decode attention, of one sequence and of a batch."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.course.ch10.kernel_runs import NAN, check_kernel, require_triton
from minivllm.course.grading.function_lab import FunctionLab

SOLUTIONS = "minivllm.course.ch10.kernel_ladder"
BLOCK_SIZE = 4
HEAD_DIM = 8


def my_decode_one(
    out, query, key_cache, value_cache, block_table, seq_len, scale, BLOCK_SIZE, HEAD_DIM
):
    """Attend with one query to one sequence, through its block table; one head, one program.

    Specification: keys, values = the rows of key_cache and value_cache at the sequence's slots
                   out = torch.softmax(scale * keys @ query, 0) @ values

    query and out are [HEAD_DIM]; the caches are [num_blocks, BLOCK_SIZE, HEAD_DIM]. Put @triton.jit
    above; BLOCK_SIZE and HEAD_DIM are tl.constexpr. Go block by block with an online softmax: m_i,
    l_i and acc of the blocks so far. Every slot without a token of the sequence is NaN.
    """
    raise NotImplementedError


def my_decode(
    out, query, key_cache, value_cache, block_tables, seq_lens, scale, table_width,
    NUM_HEADS, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM,
):  # fmt: skip
    """Compute the decode attention of a batch: a program per sequence (0) and query head (1).

    query and out are [num_seqs, NUM_HEADS, HEAD_DIM]; the caches are [num_blocks, BLOCK_SIZE,
    NUM_KV_HEADS, HEAD_DIM]; block_tables is int32 [num_seqs, table_width], seq_lens int32
    [num_seqs]. Query head h reads KV head h // (NUM_HEADS // NUM_KV_HEADS). The names in capitals
    are tl.constexpr. For each sequence and head it is my_decode_one. Slots without a token are NaN.
    """
    raise NotImplementedError


def _batch(seq_lens: list[int], num_heads: int, num_kv_heads: int, sharp: float, generator):
    """Inputs of a batch in a shuffled cache, and the right output."""
    import torch

    num_blocks = [-(-length // BLOCK_SIZE) for length in seq_lens]
    ids = (torch.randperm(sum(num_blocks), generator=generator) + 1).tolist()
    cache = torch.full((2, len(ids) + 1, BLOCK_SIZE, num_kv_heads, HEAD_DIM), NAN)
    tables = torch.zeros(len(seq_lens), max(num_blocks), dtype=torch.int32)
    query = torch.randn(len(seq_lens), num_heads, HEAD_DIM, generator=generator)
    right = torch.empty_like(query)
    for seq, length in enumerate(seq_lens):
        mine = [ids.pop() for _ in range(num_blocks[seq])]
        tables[seq, : len(mine)] = torch.tensor(mine)
        kv = torch.randn(2, length, num_kv_heads, HEAD_DIM, generator=generator)
        kv[0] *= torch.linspace(0.2, sharp, length)[:, None, None]
        for position in range(length):
            block = mine[position // BLOCK_SIZE]
            cache[:, block, position % BLOCK_SIZE] = kv[:, position]
        key, value = kv.repeat_interleave(num_heads // num_kv_heads, dim=2)
        scores = torch.einsum("hd,lhd->hl", query[seq], key) * HEAD_DIM**-0.5
        right[seq] = torch.einsum("hl,lhd->hd", scores.softmax(1), value)
    return query, *cache, tables, torch.tensor(seq_lens, dtype=torch.int32), right


def check_decode_one(function: Callable, seed: int) -> str:
    require_triton()
    import torch

    generator = torch.Generator().manual_seed(seed)

    def run(case: tuple[int, float]):
        seq_len, sharp = case
        query, key, value, table, _, right = _batch([seq_len], 1, 1, sharp, generator)

        def launch(kernel):
            out = torch.full((HEAD_DIM,), NAN)
            sizes = {"BLOCK_SIZE": BLOCK_SIZE, "HEAD_DIM": HEAD_DIM}
            kernel[(1,)](out, query, key, value, table, seq_len, HEAD_DIM**-0.5, **sizes)
            return out

        return f"{seq_len} tokens, keys up to {sharp:g}", launch, right.flatten()

    cases = ((1, 1.0), (4, 1.0), (5, 1.0), (23, 1.0), (23, 300.0))
    return f"equal to torch for {check_kernel(function, map(run, cases))} sequences"


def check_decode(function: Callable, seed: int) -> str:
    require_triton()
    import torch

    generator = torch.Generator().manual_seed(seed)

    def run(case: tuple[list[int], int, int]):
        seq_lens, heads, kv_heads = case
        query, key, value, tables, lens, right = _batch(seq_lens, heads, kv_heads, 2.0, generator)

        def launch(kernel):
            out = torch.full_like(query, NAN)
            kernel[(len(seq_lens), heads)](
                out, query, key, value, tables, lens, HEAD_DIM**-0.5, tables.shape[1],
                NUM_HEADS=heads, NUM_KV_HEADS=kv_heads, BLOCK_SIZE=BLOCK_SIZE, HEAD_DIM=HEAD_DIM,
            )  # fmt: skip
            return out

        return f"lengths {seq_lens}, {heads} heads on {kv_heads} KV heads", launch, right

    cases = (([9], 2, 2), ([1, 6], 2, 1), ([5, 17, 4], 4, 2))
    return f"equal to torch for {check_kernel(function, map(run, cases))} batches"


DECODE_ONE = FunctionLab(
    "10", "Write the decode attention of one sequence.",
    "Put the slots of table_sum and the rule of online_softmax into one loop over the blocks.",
    difficulty=4, minutes=40, stub=my_decode_one, check=check_decode_one,
    solution_module=SOLUTIONS,
)  # fmt: skip
DECODE = FunctionLab(
    "10", "Write the whole decode kernel.",
    "decode_one, with three more offsets: the row of the query, of the table, and the KV head.",
    difficulty=5, minutes=40, stub=my_decode, check=check_decode,
    solution_module=SOLUTIONS,
)  # fmt: skip
