"""A model runner with a memory: what is written into each slot, and that every read finds it.

It keeps the tables as the engine's runner does: rows only grow, and ids of blocks that a window has
left behind stay in them.
"""

from concurrent.futures import Future

from minivllm.kv.groups.manager import HybridKVCacheManager
from minivllm.kv.kv_cache_spec import FullAttentionSpec, SlidingWindowSpec
from minivllm.lab.sim.loop import fake_tokens, num_accepted
from minivllm.scheduling.output import ModelRunnerOutput, TokenLogprobs
from minivllm.worker.input_batch import InputBatch

HEADS = {"num_kv_heads": 1, "head_size": 1, "bytes_per_number": 1}


def make_specs(windows, block_size=4):
    """Specs of groups: of full attention for None, else with this window.

    A pair has a block size of its own.
    """
    specs = []
    for window in windows:
        window, size = window if isinstance(window, tuple) else (window, block_size)
        if window is None:
            specs.append(FullAttentionSpec(size, **HEADS))
        else:
            specs.append(SlidingWindowSpec(size, **HEADS, sliding_window=window))
    return specs


def make_hybrid(
    num_blocks=60, windows=(None, 9), block_size=4, caching=True, host=0, trace=None, *,
    budget=64, max_model_len=64, retention=0, num_plans=1, cls=HybridKVCacheManager,
):  # fmt: skip
    """A manager of these groups."""
    return cls(
        num_blocks, block_size, caching, host, trace, specs=make_specs(windows, block_size),
        max_model_len=max_model_len, max_in_flight_tokens=budget * num_plans,
        retention_interval=retention,
    )  # fmt: skip


class CheckedMemory:
    """Executes plans: moves blocks, writes, reads, and draws made-up tokens.

    Args:
        specs: of the groups.
        beam_width: of those requests that are beam searches.
    """

    def __init__(self, specs, beam_width=1):
        self.specs = specs
        self.beam_width = beam_width
        self.batch = InputBatch()
        self.device = {}  # (block, offset) -> group and prefix
        self.host = {}

    def submit(self, plan):
        """A Future that computes the plan when its result is asked for."""
        future = Future()
        future.result = lambda timeout=None: self.execute(plan)
        return future

    def execute(self, plan):
        self.batch.update(plan)
        self._move(plan.swaps_out, self.device, self.host)
        self._move(plan.swaps_in, self.host, self.device)
        self._move(plan.kv_cache_block_copies, self.device, self.device)
        written = set()
        tokens = {}
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            state = self.batch.states[seq_id]
            drafts = plan.scheduled_spec_decode_tokens.get(seq_id, [])
            tokens[seq_id] = [*state.token_ids, *drafts]
            start = plan.num_computed_tokens[seq_id]
            for group in range(len(self.specs)):
                for position in range(start, start + num_new):
                    slot = self._slot(state, group, position)
                    assert slot[0] != 0, f"{seq_id} writes into the null block"
                    assert slot not in written, f"{seq_id} writes into another one's block"
                    written.add(slot)
                    self.device[slot] = group, hash(tuple(tokens[seq_id][: position + 1]))
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            start = plan.num_computed_tokens[seq_id]
            for group, spec in enumerate(self.specs):
                window = getattr(spec, "sliding_window", start + 1)
                for position in range(max(0, start - window + 1), start + num_new):
                    slot = self._slot(self.batch.states[seq_id], group, position)
                    wanted = group, hash(tuple(tokens[seq_id][: position + 1]))
                    assert self.device.get(slot) == wanted, (
                        f"{seq_id} reads position {position} of group {group} in {slot}"
                    )
        return self._sample(plan)

    def _slot(self, state, group, position):
        size = self.specs[group].block_size
        return state.block_ids[group][position // size], position % size

    def _move(self, moves, source, target):
        """Copy blocks; all are read before any is written."""
        size = max(spec.block_size for spec in self.specs)
        taken = [
            (move.dst_block_id, offset, source.get((move.src_block_id, offset)))
            for move in moves
            for offset in range(size)
        ]
        for block, offset, content in taken:
            target[block, offset] = content

    def _sample(self, plan):
        sampled = {}
        logprobs = {}
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            state = self.batch.states[seq_id]
            if plan.num_computed_tokens[seq_id] + num_new < len(state.token_ids):
                continue
            drafts = plan.scheduled_spec_decode_tokens.get(seq_id, [])
            made = fake_tokens(state.token_ids, len(drafts) + 1)
            for sibling in (seq_id, *plan.forks.get(seq_id, ())):
                sampled[sibling] = made[: 1 + num_accepted(drafts, made)]
            if state.is_beam:
                likely = [(made[0] + 7 * i) % 1000 + 5 for i in range(2 * self.beam_width)]
                numbers = [-(0.1 + (made[0] * (i + 3)) % 11) for i in range(len(likely))]
                logprobs[seq_id] = [TokenLogprobs([made[0], *likely], [numbers[0], *numbers], 1)]
        self.batch.fork(plan.forks)
        self.batch.append(sampled)
        return ModelRunnerOutput(sampled, logprobs)
