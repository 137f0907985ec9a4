"""Values of a real step, for the stations of the code page that need no torch.

Three requests run through the scheduler when the site is built. What is shown is what some names of
a station's lines stood for when its function returned, for the last time in one step of that run.
"""

import sys
from functools import cache
from html import escape

from minivllm.exercises import make_request
from minivllm.kv.block_pool import BlockPool
from minivllm.kv.manager import KVCacheManager
from minivllm.request import Sequence
from minivllm.scheduling.scheduler import Scheduler
from minivllm.sim import dry_run

STEP = 1  # A decodes, and B and C share what is left of the budget
TOLD = (
    "Values “in a real step” are of the second step of one run: prompts A, B and C of 6, 9 and 3 "
    "tokens, blocks of 4 slots, at most 12 tokens a step."
)
# By file: the function that returns, and what is evaluated among its names.
PLAN = "output.num_scheduled_tokens", "output.num_computed_tokens", "output.new_block_ids"
SHOWN = {
    "request.py": (
        Sequence.__init__,
        ("self.seq_id", "self.num_prompt_tokens", "self.status.name"),
    ),
    "scheduling/scheduler.py": (
        Scheduler.schedule,
        ("self.token_budget", "[seq.seq_id for seq in self.running]", PLAN[0]),
    ),
    "kv/manager.py": (
        KVCacheManager.allocate_slots,
        ("seq.seq_id", "num_new_tokens", "computed", "missing", "new_ids"),
    ),
    "kv/block_pool.py": (
        BlockPool.get_new_blocks,
        ("n", "[block.block_id for block in taken]", "self.num_free_blocks"),
    ),
    "scheduling/output.py": (Scheduler.schedule, PLAN),
}


@cache
def values() -> dict[str, dict[str, str]]:
    """By file: what was evaluated, and its value."""
    found = {file: {} for file in SHOWN}
    num_planned = 0

    def on_return(frame, event, _) -> None:
        nonlocal num_planned
        if event != "return":
            return
        for file, (function, names) in SHOWN.items():
            begins = file == "request.py"  # all of them are made before the first step
            if frame.f_code is function.__code__ and (begins or num_planned == STEP):
                known = dict(frame.f_locals)
                found[file] = {name: repr(eval(name, known)) for name in names}
        num_planned += frame.f_code is Scheduler.schedule.__code__

    before = sys.getprofile()
    sys.setprofile(on_return)
    try:
        requests = [make_request(*it) for it in (("A", 6, 5), ("B", 9, 4), ("C", 3, 6))]
        dry_run(requests, num_blocks=16, block_size=4, max_num_batched_tokens=12)
    finally:
        sys.setprofile(before)
    return found


def values_of(name: str) -> str:
    """Rows of HTML for a file's station; "" for one without values."""
    return "".join(
        f"<br><code>{escape(said)}</code> = <code>{escape(value)}</code>"
        for said, value in values().get(name, {}).items()
    ).removeprefix("<br>")
