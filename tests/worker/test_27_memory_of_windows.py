"""Tests of the memory that windows take: blocks of each KV cache group, counted in every step."""

import pytest
from helpers import make_llm
from small_models import make_model

from minivllm import SamplingParams
from minivllm.kv.kv_cache_spec import FullAttentionSpec
from minivllm.utils.math_utils import cdiv

FULL, WINDOW = "full_attention", "sliding_attention"
LIKE_GEMMA_3 = [WINDOW] * 5 + [FULL]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Small random models whose layers are as Gemma 3's, and with two full ones."""
    directory = tmp_path_factory.mktemp("memory")
    for name, kinds in {"5 to 1": LIKE_GEMMA_3, "2 to 2": [FULL, WINDOW] * 2}.items():
        make_model(
            "Qwen2", num_hidden_layers=len(kinds), layer_types=kinds, use_sliding_window=True,
            sliding_window=512, num_attention_heads=2, num_key_value_heads=1,
            max_position_embeddings=4200, intermediate_size=16,
        ).save_pretrained(directory / name)  # fmt: skip
    return directory


class Counter:
    """Counts the blocks of each group that sequences hold, after each plan.

    Args:
        llm: the engine.
    """

    def __init__(self, llm):
        core = llm.llm_engine.engine_core
        self.scheduler = core.scheduler
        self.specs = [group.kv_cache_spec for group in core.kv_cache_config.groups]
        self.held = []  # of each plan: of each group
        self.expected = []
        self.used = []  # blocks of the pool
        self._schedule = self.scheduler.schedule
        self.scheduler.schedule = self.schedule

    def schedule(self):
        """Make a plan, and count."""
        running = [seq for request in self.scheduler.running for seq in request.seqs]
        processed = {seq.seq_id: seq.num_computed_tokens - seq.num_in_flight_tokens
                     for seq in running}  # fmt: skip
        plan = self._schedule()
        manager = self.scheduler.kv_manager
        held = [0] * len(self.specs)
        expected = [0] * len(self.specs)
        for seq_id, num_new in plan.num_scheduled_tokens.items():
            end = plan.num_computed_tokens[seq_id] + num_new
            before = processed.get(seq_id, 0)
            for group, (spec, ids) in enumerate(zip(self.specs, manager.get_block_ids(seq_id))):
                held[group] += sum(block_id != 0 for block_id in ids)
                expected[group] += cdiv(end, spec.block_size) - left_behind(spec, before)
        self.held.append(held)
        self.expected.append(expected)
        pool = manager.block_pool
        self.used.append(pool.num_usable_blocks - pool.num_free_blocks)
        return plan


def left_behind(spec, position):
    """Blocks that no query from this position on reads."""
    if isinstance(spec, FullAttentionSpec):
        return 0
    return max(0, position - spec.sliding_window + 1) // spec.block_size


def cap(spec, tokens_in_flight, max_model_len):
    """The most blocks of a sequence: of a window and what is computed, or of everything."""
    if isinstance(spec, FullAttentionSpec):
        return cdiv(max_model_len, spec.block_size)
    num_tokens = min(spec.sliding_window - 1 + tokens_in_flight, max_model_len)
    return cdiv(num_tokens, spec.block_size) + 1
