"""Figures of ranks: a layer as they have it, what they exchange, and the two parts of a step."""

import re
from concurrent.futures import Future
from functools import cache
from itertools import groupby
from types import SimpleNamespace

import pytest
import torch
from test_viz_figures import chunked

from minivllm import LLM, SamplingParams
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import fake_execute
from minivllm.lab.sim.make import make_scheduler
from minivllm.request import Request
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.trace import Trace
from minivllm.viz import rank_lanes, sharded_layer, step_bars

GROUPED = SimpleNamespace(  # two heads of K and V
    hidden_size=32, intermediate_size=64, num_heads=4, num_kv_heads=2, head_dim=8,
    dtype=torch.float32,
)  # fmt: skip


@cache
def staged(num_requests=3, max_num_seqs=8, num_stages=4):
    """Requests with prompts of 4 tokens, one prompt a plan, in a pipeline."""
    trace = Trace(40, 4, 4)
    scheduler = make_scheduler(
        KVCacheManager(40, 4, trace=trace), max_num_batched_tokens=4, max_num_seqs=max_num_seqs,
        max_model_len=40, trace=trace,
    )  # fmt: skip
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    for number in range(num_requests):
        scheduler.add_request(Request(f"r{number}", [number] * 4, params))
    queue = BatchQueue(scheduler, num_stages)

    def execute(plan):
        future = Future()
        future.set_result(fake_execute(scheduler, plan))
        return future

    while queue.has_work:
        if (done := queue.advance(execute)) is not None:
            scheduler.update_from_output(*done)
    return trace


@cache
def exchanged(tp=2, pp=2):
    """The embedded model on ranks of this process."""
    llm = LLM(
        tensor_parallel_size=tp, pipeline_parallel_size=pp, distributed_executor_backend="together",
        max_model_len=64, num_gpu_blocks_override=20, trace=True,
    )  # fmt: skip
    prompts = [{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": [8, 9]}]
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    return llm.llm_engine.trace


def test_operations_of_ranks_are_in_their_order():
    figure = rank_lanes(exchanged(), 0)
    lanes = [line[9:] for line in figure.text.splitlines() if line.startswith("rank")]
    first, last = "⊕ ⊕ ⊕ ⊕ ⊕ ⊕ ⊕ ↓", " " * 16 + "↳ ⊕ ⊕ ⊕ ⊕ ‖"
    assert lanes == [first, first, last, last]
    assert "Ranks 0 and 1: 7 all-reduces of 5,120 bytes and 1 send of 10,240 bytes." in figure.alt
    assert "5 tokens · 4 ranks" in figure.text


@pytest.mark.parametrize("size", [2, 4])
def test_the_shapes_of_a_layer_are_those_of_its_ranks(size):
    llm = LLM(tensor_parallel_size=size, distributed_executor_backend="together", max_model_len=64)
    engine = llm.llm_engine
    lines = sharded_layer(engine.vllm_config.model_config, size).text.splitlines()
    for rank, worker in enumerate(engine.engine_core.executor.workers):
        line = next(line for line in lines if line.startswith(f"rank {rank}"))
        for name, module in worker.model.model.layers[0].named_modules():
            if name.endswith("_proj"):
                assert f"{module.output_size} × {module.input_size}" in line


def test_a_head_of_k_and_v_is_on_two_of_four_ranks():
    lines = sharded_layer(GROUPED, 4, num_tokens=3).text.splitlines()
    assert [line.split("k v ")[1][0] for line in lines if line.startswith("rank")] == list("0011")
    assert lines[1] == "3 tokens · 384 bytes a sum"


def test_the_longer_bar_has_the_step_that_was_measured():
    figure = step_bars({"TP 2": (53.7, 44.5, 54.9), "TP 4": (28.4, 44.5, 45.0)})
    assert figure.text.splitlines()[2:] == [
        "TP 2   devices  53.7, CPU  44.5, measured 54.9",
        "TP 4   devices  28.4, CPU  44.5, measured 45.0",
    ]
    texts = re.findall(r">([^<>]+)</text>", figure.svg)
    numbers = [text for text in texts if text[0].isdigit() or text.startswith("measured")]
    numbers = [text for text, _ in groupby(numbers)]  # one on hatching has a halo of its own
    assert numbers == ["53.7", "measured 54.9", "44.5", "28.4", "44.5", "measured 45.0"]


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: step_bars({}), "steps must be at least one"),
        (
            lambda: step_bars({"TP 2": (1.0, 0.0, 1.0)}),
            r"'TP 2'\] must be three times above 0",
        ),
        (lambda: rank_lanes(chunked()), "plan must be a plan with tokens, of several ranks"),
        (lambda: sharded_layer(GROUPED, 1), "tensor_parallel_size must be an integer from 2 to 8"),
        (lambda: sharded_layer(GROUPED, 3), r"attention heads \(4\) must be divisible"),
        (lambda: sharded_layer(GROUPED, 2, 0), "num_tokens must be an integer of at least 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, named):
    with pytest.raises(ValueError, match=named):
        draw()
