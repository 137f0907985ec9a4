"""Runs of the last two kernels of notebook 10: decode attention, of a sequence and of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from minivllm.course.ch10.attention_mistakes import attend, mistakes
from minivllm.course.ch10.copy_runs import BEFORE, NAN
from minivllm.course.ch10.kernel_memory import Array, Program
from minivllm.course.ch10.kernel_runs import KernelRun
from minivllm.utils.math_utils import cdiv

BLOCK_SIZE = 4
HEAD_DIM = 8
SCALE = HEAD_DIM**-0.5
LARGEST = 88  # exp of more is infinite in float32


@dataclass
class Batch:
    """Sequences in a shuffled cache, each with its queries.

    Attributes:
        cache: K and V, ``[2, blocks, BLOCK_SIZE, KV heads, HEAD_DIM]``; NaN where no token is.
        tables: of each sequence, the physical blocks.
        query: ``[sequences, heads, HEAD_DIM]``.
        in_order: of each sequence, K and V as ``[2, tokens, KV heads, HEAD_DIM]``.
    """

    cache: torch.Tensor
    tables: list[list[int]]
    query: torch.Tensor
    in_order: list[torch.Tensor]

    @property
    def group(self) -> int:
        """Query heads for each KV head."""
        return self.query.shape[1] // self.cache.shape[3]

    def rows(
        self,
        compute: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
        kv_head_of: Callable[[int], int] | None = None,
    ) -> torch.Tensor:
        """Values of a function of query, keys and values, for each sequence and head."""
        found = torch.empty_like(self.query)
        for seq, kv in enumerate(self.in_order):
            for head in range(self.query.shape[1]):
                kv_head = kv_head_of(head) if kv_head_of else head // self.group
                key, value = kv[:, :, kv_head]
                found[seq, head] = compute(self.query[seq, head], key, value)
        return found

    def slots_of(self, seq: int, kv_head: int | None = None) -> torch.Tensor:
        """True for the numbers of a sequence in the cache, of one KV head or of all."""
        mine = torch.zeros(self.cache.shape[1:], dtype=torch.bool)
        heads = slice(None) if kv_head is None else kv_head
        for position in range(self.in_order[seq].shape[1]):
            block = self.tables[seq][position // BLOCK_SIZE]
            mine[block, position % BLOCK_SIZE, heads] = True
        return mine

    def why_no_token(self, index: tuple[int, ...]) -> str:
        """Say why there is nothing at this place of the cache."""
        block, slot = index[:2]
        for seq, table in enumerate(self.tables):
            if block in table:
                position = table.index(block) * BLOCK_SIZE + slot
                length = self.in_order[seq].shape[1]
                return f"that is position {position}, and this sequence has seq_len {length}"
        return f"block {block} is in no table"


def _make_batch(
    seq_lens: list[int], num_heads: int, num_kv_heads: int, sharp: float, generator
) -> Batch:
    num_blocks = [cdiv(length, BLOCK_SIZE) for length in seq_lens]
    ids = (torch.randperm(sum(num_blocks), generator=generator) + 1).tolist()
    cache = torch.full((2, len(ids) + 1, BLOCK_SIZE, num_kv_heads, HEAD_DIM), NAN)
    query = torch.randn(len(seq_lens), num_heads, HEAD_DIM, generator=generator)
    batch = Batch(cache, [], query, [])
    for seq, length in enumerate(seq_lens):
        batch.tables.append([ids.pop() for _ in range(num_blocks[seq])])
        kv = torch.randn(2, length, num_kv_heads, HEAD_DIM, generator=generator)
        kv[0] *= torch.linspace(0.2, sharp, length)[:, None, None]
        if sharp > LARGEST:  # one score in the middle for which exp is infinite
            toward = query[seq, 0] / query[seq, 0].square().sum()
            kv[0, length // 2] = toward * sharp / SCALE
        batch.in_order.append(kv)
        for position in range(length):
            block = batch.tables[seq][position // BLOCK_SIZE]
            cache[:, block, position % BLOCK_SIZE] = kv[:, position]
    return batch


def decode_one_runs(seed: int) -> Iterator[KernelRun]:
    generator = torch.Generator().manual_seed(seed)
    for seq_len, sharp in ((1, 1.0), (4, 1.0), (6, 1.0), (23, 1.0), (23, 300.0)):
        batch = _make_batch([seq_len], 1, 1, sharp, generator)
        table = torch.tensor(batch.tables[0], dtype=torch.int32)
        cache = batch.cache.squeeze(3)
        there = batch.slots_of(0).squeeze(2)
        arrays = {
            "out": _whole(torch.full((HEAD_DIM,), BEFORE), is_output=True),
            "query": _whole(batch.query.flatten()),
            "key_cache": Array(cache[0], there, batch.why_no_token, margin=NAN),
            "value_cache": Array(cache[1], there, batch.why_no_token, margin=NAN),
            "block_table": _whole(table),
        }
        sizes = {"BLOCK_SIZE": BLOCK_SIZE, "HEAD_DIM": HEAD_DIM}
        yield KernelRun(
            f"{seq_len} tokens, keys up to {sharp:g}",
            grid=(1,),
            arrays=arrays,
            numbers={"seq_len": seq_len, "scale": SCALE, **sizes},
            right=_attention(batch),
            drawn="key_cache",
            mistakes=partial(_decode_mistakes, batch),
            unit=BLOCK_SIZE * HEAD_DIM,
        )


def decode_runs(seed: int) -> Iterator[KernelRun]:
    generator = torch.Generator().manual_seed(seed)
    for seq_lens, heads, kv_heads in (([9], 2, 2), ([1, 6], 2, 1), ([5, 17, 4], 4, 2)):
        batch = _make_batch(seq_lens, heads, kv_heads, 2.0, generator)
        width = max(map(len, batch.tables))
        sizes = {
            "NUM_HEADS": heads, "NUM_KV_HEADS": kv_heads, "BLOCK_SIZE": BLOCK_SIZE,
            "HEAD_DIM": HEAD_DIM,
        }  # fmt: skip
        yield KernelRun(
            f"lengths {seq_lens}, {heads} heads on {kv_heads} KV heads",
            grid=(len(seq_lens), heads),
            arrays=_batch_arrays(batch, width),
            numbers={"scale": SCALE, "table_width": width, **sizes},
            right=_attention(batch),
            drawn="key_cache",
            mistakes=partial(_decode_mistakes, batch),
            unit=BLOCK_SIZE * kv_heads * HEAD_DIM,
        )


def _batch_arrays(batch: Batch, width: int) -> dict[str, Array]:
    num_seqs = len(batch.tables)
    tables = torch.zeros(num_seqs, width, dtype=torch.int32)
    filled = torch.zeros(num_seqs, width, dtype=torch.bool)
    there = torch.zeros(batch.cache.shape[1:], dtype=torch.bool)
    for seq, table in enumerate(batch.tables):
        tables[seq, : len(table)] = torch.tensor(table)
        filled[seq, : len(table)] = True
        there |= batch.slots_of(seq)

    def own_row(program: Program) -> torch.Tensor:
        mine = torch.zeros(batch.query.shape, dtype=torch.bool)
        mine[program] = True
        return mine

    def own_slots(program: Program) -> torch.Tensor:
        return batch.slots_of(program[0], program[1] // batch.group)

    def of_sequence(program: Program) -> torch.Tensor:
        return torch.arange(num_seqs) == program[0]

    def own_entries(program: Program) -> torch.Tensor:
        return filled & of_sequence(program)[:, None]

    lens = torch.tensor([kv.shape[1] for kv in batch.in_order], dtype=torch.int32)
    before = torch.full_like(batch.query, BEFORE)
    return {
        "out": _whole(before, own_row, is_output=True),
        "query": _whole(batch.query, own_row),
        "key_cache": Array(batch.cache[0], there, batch.why_no_token, own_slots, margin=NAN),
        "value_cache": Array(batch.cache[1], there, batch.why_no_token, own_slots, margin=NAN),
        "block_tables": _whole(tables, own_entries, spare=~filled),
        "seq_lens": _whole(lens, of_sequence),
    }


def _whole(
    values: torch.Tensor,
    own: Callable[[Program], torch.Tensor] | None = None,
    is_output: bool = False,
    spare: torch.Tensor | None = None,
) -> Array:
    """An array in which every number is there."""
    return Array(
        values,
        torch.ones(values.shape, dtype=torch.bool),
        why=lambda index: f"there are {values.shape[0]}",
        own=own,
        is_output=is_output,
        spare=spare,
    )


def _attention(batch: Batch) -> torch.Tensor:
    return batch.rows(lambda q, k, v: ((k @ q) * SCALE).softmax(0) @ v)


def _decode_mistakes(batch: Batch) -> dict[str, torch.Tensor]:
    """By explanation, the output of a kernel that makes this mistake for every row."""

    def online(q, k, v, scale=SCALE):
        return attend((k @ q * scale)[None], v, BLOCK_SIZE)[0]

    found = {
        "the scores are not multiplied by scale": batch.rows(lambda q, k, v: online(q, k, v, 1.0)),
        "the scores are multiplied by scale twice": batch.rows(
            lambda q, k, v: online(q, k, v, SCALE**2)
        ),
        "keys are summed up in place of values": batch.rows(lambda q, k, v: online(q, k, k)),
        "values are compared with the query in place of keys": batch.rows(
            lambda q, k, v: online(q, v, v)
        ),
    }
    if batch.group > 1 and batch.cache.shape[3] > 1:
        found["query head h reads KV head h // group, and not h % NUM_KV_HEADS"] = batch.rows(
            online, kv_head_of=lambda head: head % batch.cache.shape[3]
        )
    online_mistakes: dict[str, torch.Tensor] = {}
    for seq, kv in enumerate(batch.in_order):
        for head, query in enumerate(batch.query[seq]):
            key, value = kv[:, :, head // batch.group]
            scores = (key @ query * SCALE)[None]
            for why, mistaken in mistakes(scores, value, BLOCK_SIZE).items():
                rows = online_mistakes.setdefault(why, torch.empty_like(batch.query))
                rows[seq, head] = mistaken[0]
    return found | online_mistakes
