"""Memory saved by block sharing among parallel samples and beams (the paper's figure 15).

Figure 15 of the PagedAttention paper (Kwon et al. 2023, section 6.3) shows it for 2, 4 and 6
samples, or beams, a request: the blocks that sharing saves, divided by all without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.lab.sim.cost import MODELS
from minivllm.lab.sim.run import simulate
from minivllm.lab.sim.workloads import several_answers
from minivllm.utils.math_utils import cdiv

SIZES = (2, 4, 6)
BLOCK_SIZE = 16
MAX_NUM_SEQS = 256
# The saving from the smallest to the largest size, as section 6.3 says it, by (lengths, beams?).
PAPER = {
    ("alpaca", False): (0.061, 0.098),
    ("alpaca", True): (0.376, 0.552),
    ("sharegpt", False): (0.162, 0.305),
    ("sharegpt", True): (0.443, 0.663),
}


@dataclass(frozen=True)
class SharingRow:
    """The share of blocks saved, 0 to 1, by the number of answers; and the paper's range."""

    lengths: str
    beams: bool
    saved: dict[int, float]
    paper: tuple[float, float]


def measure_sharing(num_requests: int = 100, seed: int = 0) -> tuple[SharingRow, ...]:
    """Serve requests for 2, 4 and 6 samples or beams, on Alpaca-like and ShareGPT-like lengths.

    The pool holds all requests, so none gives way; prefix caching is off, so that only answers to
    one request share. What differs from the paper, and why:

    * The lengths are drawn from log-normal distributions with the data sets' means, not from the
      data sets. How much is shared hangs on how long prompts are *beside* their answers, request by
      request; here the two are independent.
    * All samples of a request are equally long. In life the short ones end first, and what the last
      one holds is not shared.
    * Of the beams' candidates random ones go on. A model prefers some, so that in life beams have
      their last common ancestor nearer or farther back.
    * No request waits or is preempted, which the paper's load brings about now and then.

    Args:
        num_requests: of each of the twelve workloads, all at once.
        seed: of the workloads.
    """
    num_blocks = MAX_NUM_SEQS * cdiv(MODELS["opt-13b"].max_model_len, BLOCK_SIZE) + 1
    rows = []
    for (lengths, beams), paper in PAPER.items():
        saved = {}
        for n in SIZES:
            workload = several_answers(num_requests, seed=seed, n=n, lengths=lengths, beams=beams)
            saved[n] = simulate(
                workload,
                model="opt-13b",
                num_blocks=num_blocks,
                block_size=BLOCK_SIZE,
                max_num_seqs=MAX_NUM_SEQS,
                enable_prefix_caching=False,
            ).saved_by_sharing
        rows.append(SharingRow(lengths, beams, saved, paper=paper))
    return tuple(rows)
