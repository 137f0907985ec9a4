"""KV cache fragmentation with and without paging (the paper's figure 2).

Figure 2 of the PagedAttention paper (Kwon et al. 2023) shows it for the serving experiments of its
section 6.2. ``measure_waste`` runs the same workload through the same scheduler on each manager.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from minivllm.lab.contiguous.manager import SlotUsage
from minivllm.lab.sim.run import simulate
from minivllm.lab.sim.workloads import sharegpt_like

# The paper's table 1: OPT-13B on an A100 with 40 GB leaves 12 GiB for K and V of 800 KiB a token.
NUM_SLOTS = 12 * 2**30 // (800 * 2**10)
BLOCK_SIZE = 16


class PaperBar(NamedTuple):
    """One bar of figure 2, as shares; vLLM's has only its first number."""

    name: str
    tokens: float
    reserved: float | None = None
    internal: float | None = None
    external: float | None = None


PAPER = {
    "contiguous-max": PaperBar("Orca (Max)", 0.204, 0.133, 0.573, 0.089),
    "contiguous-pow2": PaperBar("Orca (Pow2)", 0.268, 0.179, 0.136, 0.416),
    "contiguous-exact": PaperBar("Orca (Oracle)", 0.382, 0.252, 0.0, 0.366),
    "paged": PaperBar("vLLM", 0.963),
}


@dataclass(frozen=True)
class WasteRow:
    """One manager: what its slots did, as shares of the pool, and what figure 2 says."""

    manager: str
    measured: SlotUsage
    paper: PaperBar

    @property
    def external(self) -> float:
        """External in the paper's sense: all that is in no reservation."""
        return self.measured.rounding + self.measured.external + self.measured.free

    @property
    def waste_in_held(self) -> float:
        """The share of held slots that hold no token."""
        held = self.measured.held
        return 1 - self.measured.tokens / held if held else 0.0


def measure_waste(
    num_requests: int = 500, seed: int = 0, allocator: str = "buddy"
) -> tuple[WasteRow, ...]:
    """Serve ShareGPT-like requests on every manager, all in a pool of the paper's size.

    All arrive at once, and only steps in which a request waits count: memory that none asks for is
    not wasted. What differs from the paper, and why:

    * The lengths are drawn from log-normal distributions with ShareGPT's means, not from ShareGPT
      itself; their spread is fitted to the paper's Max bar (see ``workloads.LENGTHS``), so that row
      is no independent check. The other rows are.
    * The paper's requests arrive one after the other (a Poisson process); here there is always a
      queue, so no slot is free for want of work.
    * The paper has three classes. Slots that the buddy allocator adds to a slab are external waste
      there (its Oracle bar has no internal waste); so are free slots that are too few for the next
      request even together (its Max bar: 15,728 slots hold 7 slabs of 2,048; 8.9 % are left).
      Both are told apart here, and ``WasteRow.external`` adds them up as the paper does.
    * The paper's 96.3 % and ours both count a paged sequence's partly filled last block as waste.
      Ours also loses the blocks that stay free because the next prompt does not fit, and those that
      a preemption has just freed: they are "free", and ``waste_in_held`` leaves them out.

    Args:
        num_requests: of the workload; a few hundred are enough to fill the pool many times over.
        seed: of the workload.
        allocator: of the contiguous managers: "buddy", as in the paper, or "first_fit".
    """
    workload = sharegpt_like(num_requests, seed=seed)
    rows = []
    for manager, bar in PAPER.items():
        result = simulate(
            workload,
            model="opt-13b",
            manager=manager,
            allocator=allocator,
            num_blocks=NUM_SLOTS // BLOCK_SIZE + 1,  # and the null block
            block_size=BLOCK_SIZE,
            enable_prefix_caching=False,
        )
        rows.append(WasteRow(manager, result.memory_under_load, bar))
    return tuple(rows)
