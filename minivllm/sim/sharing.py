"""What sharing saves, measured: several samples of one prompt hold its blocks once.

Figure 15 of the PagedAttention paper (Kwon et al. 2023, section 6.3) shows it for 2, 4 and 6
samples a request: the blocks that sharing saves, divided by all that would be held without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.kv.block_table import cdiv
from minivllm.sim.cost import MODELS
from minivllm.sim.run import simulate
from minivllm.sim.workloads import LENGTHS, parallel_sampling

SIZES = (2, 4, 6)
BLOCK_SIZE = 16
MAX_NUM_SEQS = 256
# The saving from the smallest to the largest size, as section 6.3 says it.
PAPER = {"alpaca": (0.061, 0.098), "sharegpt": (0.162, 0.305)}


@dataclass(frozen=True)
class SharingRow:
    """The share of blocks saved, 0 to 1, by the number of samples; and the paper's range."""

    lengths: str
    saved: dict[int, float]
    paper: tuple[float, float]


def measure_sharing(num_requests: int = 200, seed: int = 0) -> tuple[SharingRow, ...]:
    """Serve requests for 2, 4 and 6 samples each, on Alpaca-like and ShareGPT-like lengths.

    The pool holds everybody, so nobody gives way; prefix caching is off, so that only samples of
    one request share. What differs from the paper, and why:

    * The lengths are drawn from log-normal distributions with the data sets' means, not from the
      data sets. How much is shared hangs on how long prompts are *beside* their answers, request by
      request; here the two are independent.
    * All samples of a request are equally long. In life the short ones end first, and what the last
      one holds is shared with nobody.
    * Nobody waits or is preempted, which the paper's load brings about now and then.

    Args:
        num_requests: of each of the six workloads, all at once.
        seed: of the workloads.
    """
    num_blocks = MAX_NUM_SEQS * cdiv(MODELS["opt-13b"].max_model_len, BLOCK_SIZE) + 1
    rows = []
    for lengths in LENGTHS:
        saved = {}
        for n in SIZES:
            workload = parallel_sampling(num_requests, seed=seed, n=n, lengths=lengths)
            saved[n] = simulate(
                workload,
                model="opt-13b",
                num_blocks=num_blocks,
                block_size=BLOCK_SIZE,
                max_num_seqs=MAX_NUM_SEQS,
                enable_prefix_caching=False,
            ).saved_by_sharing
        rows.append(SharingRow(lengths, saved, PAPER[lengths]))
    return tuple(rows)
