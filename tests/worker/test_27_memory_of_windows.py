"""Tests of the memory that windows take: blocks of each KV cache group, counted in every step."""

import pytest
from helpers import make_llm, workers_of
from small_models import make_model

from minivllm import SamplingParams
from minivllm.kv.kv_cache_spec import FullAttentionSpec
from minivllm.utils.math_utils import cdiv

FULL, WINDOW = "full_attention", "sliding_attention"
KINDS = {"5 : 1": [WINDOW] * 5 + [FULL], "all": [WINDOW] * 2, "2 : 2": [FULL, WINDOW] * 2}
LENGTH = 4096


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Small random models with windows in some layers, as Gemma 3 has them, or in all."""
    directory = tmp_path_factory.mktemp("memory")
    for name, kinds in KINDS.items():
        make_model(
            "Qwen2", num_hidden_layers=len(kinds), layer_types=kinds, use_sliding_window=True,
            sliding_window=512, num_attention_heads=2, num_key_value_heads=1, hidden_size=16,
            intermediate_size=16, max_position_embeddings=LENGTH,
        ).save_pretrained(directory / name)  # fmt: skip
    return directory


class CountedBlocks:
    """Counts the blocks that are in use after each plan of an engine.

    Args:
        llm: the engine.
    """

    def __init__(self, llm):
        core = llm.llm_engine.engine_core
        self.scheduler = core.scheduler
        self.specs = [group.kv_cache_spec for group in core.kv_cache_config.groups]
        self.used = []  # of the pool
        self.held = []  # of each group, by all sequences
        self._schedule = self.scheduler.schedule
        self.scheduler.schedule = self.schedule

    def schedule(self):
        """Make a plan; count, and hold each sequence in it to the blocks that it needs."""
        sequences = list(self.scheduler.sequences.values())
        processed = {s.seq_id: s.num_computed_tokens - s.num_in_flight_tokens for s in sequences}
        plan = self._schedule()
        manager = self.scheduler.kv_manager
        held = [0] * len(self.specs)
        for seq in sequences:
            if seq.seq_id not in manager.block_tables:
                continue
            tables = manager.ids_by_group(manager.get_block_ids(seq.seq_id))
            for group, (spec, table) in enumerate(zip(self.specs, tables, strict=True)):
                num_held = sum(block_id != 0 for block_id in table)
                held[group] += num_held
                if seq.seq_id in plan.num_scheduled_tokens:
                    left = blocks_left_behind(spec, processed[seq.seq_id])
                    assert num_held == cdiv(seq.num_computed_tokens, spec.block_size) - left
        pool = manager.block_pool
        self.held.append(held)
        self.used.append(pool.num_usable_blocks - pool.num_free_blocks)
        return plan


def blocks_left_behind(spec, position):
    """Number of blocks that no query from this position on reads."""
    if isinstance(spec, FullAttentionSpec):
        return 0
    return max(0, position - spec.sliding_window + 1) // spec.block_size


def most_blocks(spec, tokens_in_flight):
    """The most blocks of a sequence: of its window and what is computed, or of everything."""
    if isinstance(spec, FullAttentionSpec):
        return cdiv(LENGTH, spec.block_size)
    return cdiv(min(spec.sliding_window - 1 + tokens_in_flight, LENGTH), spec.block_size) + 1


def serve(directory, prompt_len, max_tokens, **settings):
    """Serve a long prompt, and a long answer to it. Returns what was counted."""
    llm = make_llm(directory, enable_prefix_caching=False, max_model_len=LENGTH, **settings)
    counted = CountedBlocks(llm)
    prompt = [(7 * i) % 90 for i in range(prompt_len)]
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    return llm, counted


@pytest.mark.combinations(2)
@pytest.mark.parametrize("plans", [1, 2], ids=["one plan", "two in flight"])
@pytest.mark.parametrize(("window", "budget", "block_size"), [(9, 16, 4), (17, 5, 4), (24, 1, 16)])
@pytest.mark.parametrize("kinds", KINDS)
def test_blocks_held_in_every_step(checkpoints, kinds, window, budget, block_size, plans):
    """Window plus budget while a prompt is computed, the window alone afterwards."""
    _, counted = serve(
        checkpoints / kinds, prompt_len=70, max_tokens=40, block_size=block_size,
        max_num_batched_tokens=budget, max_num_seqs=1, async_scheduling=plans == 2,
        hf_overrides={"sliding_window": window}, num_gpu_blocks_override=6 * 4096,
    )  # fmt: skip
    assert counted.used == [sum(held) for held in counted.held]
    for group, spec in enumerate(counted.specs):
        most = max(held[group] for held in counted.held)
        last = max(held[group] for held in counted.held[-20:])
        if isinstance(spec, FullAttentionSpec):
            assert most == last == cdiv(109, block_size)  # of the last token nothing is kept
            continue
        cap = most_blocks(spec, plans * budget)
        assert cap - 1 <= most <= cap
        assert last <= cdiv(window - 1 + plans, block_size) + 1
    order = [isinstance(spec, FullAttentionSpec) for spec in counted.specs]
    assert order == {"5 : 1": [False] * 5 + [True], "all": [False], "2 : 2": [True, False]}[kinds]


@pytest.mark.parametrize("disabled", [False, True], ids=["groups", "one group"])
def test_memory_of_a_model_like_gemma_3(checkpoints, disabled):
    """A window of 512 in five of six layers, 4,096 tokens in chunks of 256: a third of it all."""
    llm, counted = serve(
        checkpoints / "5 : 1", prompt_len=LENGTH - 8, max_tokens=8, max_num_batched_tokens=256,
        num_gpu_blocks_override=600, disable_hybrid_kv_cache_manager=disabled,
    )  # fmt: skip
    (worker,) = workers_of(llm)
    cache = worker.model_runner.kv_cache
    bytes_per_block = cache.data.nbytes // cache.data.shape[2]
    page = 2 * cache.layer(0)[0][0].nbytes  # K and V of a block in one layer
    all_layers = 6 * LENGTH // 16 * page
    peak = max(counted.used) * bytes_per_block
    assert (peak == all_layers) if disabled else (peak <= 0.35 * all_layers)
    assert bytes_per_block == (6 * page if disabled else page)
