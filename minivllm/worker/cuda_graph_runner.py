"""CUDA graphs: a whole decode step is recorded once, and started with one call ever after.

The model's forward pass is hundreds of small kernels. In a decode step many of them run for less
time than Python takes to start one, so the GPU would wait for the CPU. A *graph* is what one run
has started, recorded: the same kernels, of the same sizes, on the same addresses. So every input
has a buffer that stays where it is, and a batch is filled up to the next size that was recorded.
(vLLM: vllm/compilation/cuda_graph.py, vllm/v1/cudagraph_dispatcher.py; FULL_DECODE_ONLY)
(notebook 13b)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch

from minivllm.attention.metadata import AttentionMetadata

LARGEST_SIZE = 512  # beyond it kernels are long enough to hide how slowly they are started


def capture_sizes(most: int) -> list[int]:
    """The batch sizes to record, up to ``most`` or 512: fine steps first, coarser ones later.

    (vLLM's default ``cudagraph_capture_sizes``)
    """
    most = min(most, LARGEST_SIZE)
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, LARGEST_SIZE, 16))
    return [size for size in sizes if size < most] + [most]


class GraphRecorder(Protocol):
    """Interface of what captures a function and replays it without Python."""

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Capture a function that reads and writes buffers; returns a function that replays it."""


class CUDAGraphRecorder:
    """Captures CUDA graphs. All share one pool of memory: only one runs at a time."""

    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Record a CUDA graph: see ``GraphRecorder.capture``."""
        # The first run compiles kernels and makes libraries set themselves up: not to be recorded.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            function()
        torch.cuda.current_stream().wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            function()
        return graph.replay


class CUDAGraphRunner:
    """The forward pass of a batch of decodes, for some batch sizes.

    The rows that fill a batch up are sequences of one token in the null block. They write there,
    read what they wrote, and their results are dropped.

    Args:
        forward: hidden states ``[n, hidden_size]`` of token ids, positions and each KV cache
            group's metadata. It may look at the sizes of tensors, never at what is in them.
        sizes: the batch sizes to record.
        max_model_len: tokens of the longest sequence.
        block_size: positions per block.
        device: where the buffers go.
        recorder: see ``GraphRecorder``.
        num_groups: KV cache groups. Each has buffers of its own for what says where blocks are.
    """

    def __init__(
        self,
        forward: Callable[[torch.Tensor, torch.Tensor, list[AttentionMetadata]], torch.Tensor],
        sizes: list[int],
        max_model_len: int,
        block_size: int,
        device: torch.device,
        recorder: GraphRecorder,
        num_groups: int = 1,
    ):
        self.sizes = sorted(sizes)
        self._forward = forward
        most = self.sizes[-1]

        def zeros(*shape, dtype=torch.int32):
            return torch.zeros(shape, dtype=dtype, device=device)

        self.token_ids, self.positions = zeros(2, most, dtype=torch.int64)
        query_start_loc = torch.arange(most + 1, dtype=torch.int32, device=device)
        self.seq_lens = zeros(most) + 1
        self.metadata = [
            AttentionMetadata(
                query_start_loc=query_start_loc,
                seq_lens=self.seq_lens,
                block_table=zeros(most, -(-max_model_len // block_size)),
                slot_mapping=zeros(most, dtype=torch.int64),
                max_query_len=1,
                max_seq_len=max_model_len,
            )
            for _ in range(num_groups)
        ]
        self.hidden: torch.Tensor | None = None  # [most, hidden_size], once the first run is done
        # The largest first, so that the smaller ones find room in the memory it has left.
        self._replays = {n: recorder.capture(partial(self._run, n)) for n in self.sizes[::-1]}

    def _run(self, size: int) -> None:
        """The forward pass on the first rows of all buffers."""
        metadata = [
            replace(
                whole,
                query_start_loc=whole.query_start_loc[: size + 1],
                seq_lens=whole.seq_lens[:size],
                block_table=whole.block_table[:size],
                slot_mapping=whole.slot_mapping[:size],
            )
            for whole in self.metadata
        ]
        hidden = self._forward(self.token_ids[:size], self.positions[:size], metadata)
        if self.hidden is None:
            self.hidden = torch.empty_like(hidden)
        self.hidden[:size] = hidden

    def size_for(self, query_lens: list[int]) -> int:
        """The captured size that a batch is padded to: the next that is large enough, if any."""
        num_seqs = len(query_lens)
        index = bisect_left(self.sizes, num_seqs)
        decodes_only = max(query_lens) == 1
        return self.sizes[index] if decodes_only and index < len(self.sizes) else num_seqs

    def has(self, metadata: list[AttentionMetadata]) -> bool:
        """True if a graph was captured for a batch like this: decodes only, and not too many."""
        first = metadata[0]  # the sequences are the same in all groups
        return first.max_query_len == 1 and len(first.seq_lens) in self._replays

    def replay(
        self, token_ids: torch.Tensor, positions: torch.Tensor, metadata: list[AttentionMetadata]
    ) -> torch.Tensor:
        """Replay the forward pass of a batch for which ``has`` is true; arguments as ``forward``.

        Returns:
            ``[n, hidden_size]``, in a buffer that the next call overwrites.
        """
        size = len(token_ids)
        self.token_ids[:size] = token_ids
        self.positions[:size] = positions
        self.seq_lens[:size] = metadata[0].seq_lens
        for buffers, group in zip(self.metadata, metadata, strict=True):
            buffers.block_table[:size, : group.block_table.shape[1]] = group.block_table
            buffers.slot_mapping[:size] = group.slot_mapping
        self._replays[size]()
        assert self.hidden is not None, "a recording wrote to it"
        return self.hidden[:size]
