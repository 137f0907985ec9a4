"""Recorded decode steps: padded batches on fixed addresses say what eager ones say.

A recorder that only calls the function again stands in for a GPU's: what it cannot show is that
nothing outside the buffers is used, which is what ``LooksAreErrors`` is for.
"""

import random
from dataclasses import replace

import pytest
import torch
from cuda_stand_ins import CUDA, GIB, CallsAgain, pretend_memory
from helpers import make_llm, run_and_compare, workload
from torch.utils._python_dispatch import TorchDispatchMode

from minivllm import LLM, SamplingParams
from minivllm.attention.metadata import AttentionMetadata
from minivllm.exercises import ch13b
from minivllm.lab.bench.operations import count_kernels
from minivllm.sim import launch_each, launch_graph
from minivllm.worker.cuda_graph_runner import CUDAGraphRunner, capture_sizes
from minivllm.worker.model_input import ModelInput

pytestmark = pytest.mark.slow

BACKENDS = ["reference", "paged_torch", "paged_numba", "paged_triton"]
CPU = torch.device("cpu")


def with_graphs(llm, sizes):
    """Let an engine replay its decode steps; returns the recorder."""
    runner, recorder = llm.llm_engine.model_runner, CallsAgain()
    runner.kv_cache.data[:, :, 0] = torch.nan  # who reads what padding has left will know
    runner.capture_decodes(sizes, llm.llm_engine.max_model_len, recorder)
    runner.kv_cache.data[:, :, 0] = torch.nan
    return recorder


def record_batch_sizes(runner):
    """The rows of every step's batch, and the sequences that were in the plan."""
    seen, prepare = [], runner.prepare_inputs

    def prepare_and_note(plan):
        inputs = prepare(plan)
        seen.append((len(plan.num_scheduled_tokens), len(inputs[0])))
        return inputs

    runner.prepare_inputs = prepare_and_note
    return seen


# ---- queues, requests and blocks -------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (20, [1, 2, 4, 8, 16, 20]),
        (288, [1, 2, 4, *range(8, 256, 8), 256, 272, 288]),
    ],
)
def test_which_sizes_are_recorded(most, sizes):
    assert capture_sizes(most) == sizes


def test_no_size_is_larger_than_512():
    assert capture_sizes(1024) == capture_sizes(512)
    assert capture_sizes(512)[-2:] == [496, 512]


def decodes(n, width=1):
    """n sequences of 3 tokens each, in blocks of 4, with tables that differ."""
    tables = [[i + 1] * width for i in range(n)]
    return AttentionMetadata.build(
        [1] * n, [3] * n, tables, [4 * (i + 1) + 2 for i in range(n)], CPU
    )


def test_every_replay_sees_the_addresses_that_were_recorded():
    calls = []

    def forward(token_ids, positions, metadata):
        (m,) = metadata
        tensors = (token_ids, positions, m.query_start_loc, m.seq_lens, m.block_table,
                   m.slot_mapping)  # fmt: skip
        shapes = [(t.data_ptr(), t.shape, t.stride()) for t in tensors]
        calls.append((shapes, m.max_query_len, m.max_seq_len, [t.tolist() for t in tensors]))
        return (token_ids + positions)[:, None].float()

    graphs = CUDAGraphRunner(forward, [4, 1, 2], 16, 4, CPU, CallsAgain())
    recorded = {len(values[0]): call for *call, values in calls}
    assert list(recorded) == [4, 2, 1]  # the largest first
    padding = calls[0][-1]
    assert padding == [[0] * 4, [0] * 4, [0, 1, 2, 3, 4], [1] * 4, [[0] * 4] * 4, [0] * 4]
    for n, width in ((4, 3), (2, 1), (4, 1), (1, 2)):
        batch = decodes(n, width)
        hidden = graphs.replay(torch.arange(n) + 10, torch.full((n,), 2), [batch])
        *call, values = calls[-1]
        assert call == recorded[n]
        assert values[3:] == [
            [3] * n, [row[:width] + row[width:] for row in values[4]], batch.slot_mapping.tolist()
        ]  # fmt: skip
        assert [row[:width] for row in values[4]] == batch.block_table.tolist()
        assert hidden.flatten().tolist() == [i + 12 for i in range(n)]


def test_each_group_has_buffers_of_its_own():
    """Two KV cache groups differ in blocks and slots; rows and lengths are in the same memory."""
    seen = []

    def forward(token_ids, positions, metadata):
        seen.append(metadata)
        return token_ids[:, None].float()

    graphs = CUDAGraphRunner(forward, [1, 2], 16, 4, CPU, CallsAgain(), num_groups=2)
    batches = [decodes(2), decodes(2).with_blocks([[5, 6], [7]], [22, 30])]
    graphs.replay(torch.arange(2), torch.full((2,), 2), batches)
    first, second = seen[-1]
    assert first.block_table.tolist() == [[1, 0, 0, 0], [2, 0, 0, 0]]
    assert second.block_table.tolist() == [[5, 6, 0, 0], [7, 0, 0, 0]]
    assert [m.slot_mapping.tolist() for m in (first, second)] == [[6, 10], [22, 30]]
    assert first.seq_lens.data_ptr() == second.seq_lens.data_ptr()
    assert first.query_start_loc.data_ptr() == second.query_start_loc.data_ptr()


def test_what_is_replayed_and_what_is_not():
    graphs = CUDAGraphRunner(lambda ids, *_: ids[:, None], [2, 8], 16, 4, CPU, CallsAgain())
    for n, padded in ((1, 2), (2, 2), (3, 8), (8, 8), (9, 9)):
        ones = [1] * n
        slots, tables = [[7] * n, [7] * n], [[[7, 7]] * n, [[8, 8]] * n]
        batch = ModelInput([7] * n, [7] * n, list(ones), [7] * n, slots, tables)
        batch.pad(graphs.size_for(batch.query_lens))
        assert batch.token_ids == batch.positions == [7] * n + [0] * (padded - n)
        assert batch.query_lens == [1] * padded
        assert batch.seq_lens == [7] * n + [1] * (padded - n)
        assert batch.slots == [batch.token_ids] * 2
        for group in batch.block_tables:
            assert len(group) == padded
            assert group[n:] == [[0]] * (padded - n)
    assert graphs.size_for([1, 2]) == 2, "a chunk is not filled up"
    assert graphs.has([decodes(2)])
    assert not graphs.has([decodes(9)])
    chunk = AttentionMetadata.build([1, 2], [3, 2], [[1], [2]], [6, 8, 9], CPU)
    assert not graphs.has([chunk])


# ---- the engine ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS[:3])
def test_replayed_steps_change_no_token(tiny_qwen2, backend):
    """Chunks, preemption, shared prefixes; batches of 1 to 7, of which 7 is too large."""
    llm = make_llm(
        tiny_qwen2, attention_backend=backend, block_size=4, max_num_batched_tokens=33,
        max_model_len=40, num_gpu_blocks_override=16,
    )  # fmt: skip
    recorder = with_graphs(llm, [1, 4, 6])
    sizes = record_batch_sizes(llm.llm_engine.model_runner)
    run_and_compare(llm, *workload(random.Random(0), 9, 97, 40))
    assert llm.llm_engine.scheduler.num_preemptions > 0
    assert recorder.num_replays > 10
    assert {(2, 4), (3, 4), (5, 6), (1, 1)} <= set(sizes)
    assert any(tokens > 6 for _, tokens in sizes)


@pytest.mark.parametrize("caching", [True, False])
def test_samples_that_share_blocks(caching):
    """The embedded model; copy on write, forks, and tokens drawn in batches of padded rows."""
    said, prompts = [], ["The capital of France is", "Hello, my name is"]
    params = [
        SamplingParams(n=3, temperature=0.8, seed=1, max_tokens=12, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=9, logprobs=2),
    ]
    for graphs in (False, True):
        llm = LLM(
            dtype="float32", block_size=4, max_model_len=64, num_gpu_blocks_override=40,
            enable_prefix_caching=caching,
        )  # fmt: skip
        recorder = with_graphs(llm, [8]) if graphs else None
        outputs = llm.generate(prompts, params, use_tqdm=False)
        said.append([c.token_ids for output in outputs for c in output.outputs])
    assert said[0] == said[1]
    assert recorder.num_replays >= 11


@pytest.mark.parametrize("num_splits", [1, 3])
def test_the_kernels_read_padded_batches(tiny_qwen2, num_splits, monkeypatch):
    """Under the interpreter. A graph's number of splits is for long sequences, and these are short:
    some ranges are empty."""
    monkeypatch.setattr("minivllm.attention.paged_triton.choose_num_splits", lambda **_: num_splits)
    prompts, params = [[5, 6, 7], [8], [9, 10]], SamplingParams(temperature=0, max_tokens=3)
    said = []
    for sizes in ([], [4]):
        llm = make_llm(
            tiny_qwen2, attention_backend="paged_triton", block_size=4, max_model_len=32,
            num_gpu_blocks_override=20,
        )  # fmt: skip
        if sizes:
            recorder = with_graphs(llm, sizes)
        said.append(llm.generate(prompts, params, use_tqdm=False))
    tokens = [[c.token_ids for output in outputs for c in output.outputs] for outputs in said]
    assert tokens[0] == tokens[1]
    assert recorder.num_replays == 2


def test_what_a_worker_on_a_gpu_does_and_says(tiny_qwen2, monkeypatch, capsys):
    """A GPU that is made up: its memory, and a recorder that only calls again."""
    kwargs = {"block_size": 4, "max_model_len": 32, "num_gpu_blocks_override": 20}
    llm = make_llm(tiny_qwen2, attention_backend="paged_torch", max_num_seqs=6, **kwargs)
    worker = llm.llm_engine.worker
    pretend_memory(monkeypatch, (9 * GIB, 10 * GIB), (8 * GIB, 10 * GIB))
    monkeypatch.setattr("minivllm.worker.worker.CUDAGraphRecorder", CallsAgain)
    monkeypatch.setattr(worker, "device", CUDA)
    for enforce_eager, supports, line in (
        (True, True, "No CUDA graphs: enforce_eager=True."),
        (False, False, "No CUDA graphs: paged_torch looks into its inputs, and looks are not"),
        (
            False,
            True,
            "Graph capturing finished in 0 secs, took 1.00 GiB: 4 batch sizes from 1 to 6",
        ),
    ):
        config = worker.config
        device_config = replace(config.device_config, enforce_eager=enforce_eager)
        monkeypatch.setattr(worker, "config", replace(config, device_config=device_config))
        monkeypatch.setattr(worker.attention, "supports_cuda_graphs", supports, raising=False)
        capsys.readouterr()
        assert worker.model_runner.cuda_graph_runner is None
        worker.compile_or_warm_up_model()
        assert f"INFO {line}" in capsys.readouterr().out
    assert worker.model_runner.cuda_graph_runner.sizes == [1, 2, 4, 6]


# ---- what may be recorded --------------------------------------------------------------------


class LooksAreErrors(TorchDispatchMode):
    """Refuses what a GPU would have to wait for: numbers that become Python's, or come from it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        if name in ("aten::_local_scalar_dense", "aten::lift_fresh", "aten::nonzero"):
            raise AssertionError(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_knows_whether_it_can_be_recorded(tiny_qwen2, backend, monkeypatch):
    """It, and not the product that is the fastest here: a GPU has none of a CPU's."""

    class Strict:
        def capture(self, function):
            def refuse(*_):
                raise AssertionError("a look")

            with LooksAreErrors(), monkeypatch.context() as patch:
                if backend != "paged_triton":  # its interpreter is numpy
                    patch.setattr(torch.Tensor, "numpy", refuse)
                patch.setattr(torch.Tensor, "tolist", refuse)
                function()
            return function

    llm = make_llm(
        tiny_qwen2, attention_backend=backend, block_size=4, num_gpu_blocks_override=70,
        enforce_eager=True,
    )  # fmt: skip
    engine = llm.llm_engine
    if engine.worker.attention.supports_cuda_graphs:
        engine.model_runner.capture_decodes([2], 64, Strict())
    else:
        with pytest.raises(AssertionError, match=r"aten|a look"):
            engine.model_runner.capture_decodes([2], 64, Strict())


# ---- launches, as the notebook draws them ----------------------------------------------------


def test_kernels_wait_for_their_launch_and_for_the_one_before():
    short = launch_each([2.0] * 4, 5.0)
    assert [launch.gpu for launch in short] == [(5, 7), (10, 12), (15, 17), (20, 22)]
    long = launch_each([9.0, 1.0, 9.0], 5.0)
    assert [launch.gpu for launch in long] == [(5, 14), (14, 15), (15, 24)]
    assert [launch.cpu for launch in long] == [(0, 5), (5, 10), (10, 15)]
    graph = launch_graph([9.0, 1.0], 5.0)
    assert graph == [((0, 5), (5, 14)), (None, (14, 15))]
    with pytest.raises(ValueError, match="launch_us must be a number above 0, got 0"):
        launch_each([1.0], 0)
    with pytest.raises(ValueError, match="kernels_us must be numbers above 0"):
        launch_graph([], 5.0)


def test_padded_rows_are_the_runners_own():
    graphs = CUDAGraphRunner(lambda ids, *_: ids[:, None], [2, 8], 16, 4, CPU, CallsAgain())
    rows = ch13b.rows(seed=3).solve()
    for query_lens in ([1], [1] * 3, [1] * 8, [1] * 9, [2, 1], [7]):
        assert rows([2, 8], query_lens) == graphs.size_for(query_lens)


def test_kernels_of_a_decode_are_counted_and_views_are_not():
    llm = LLM(enforce_eager=True, attention_backend="reference", max_model_len=64,
              block_size=16, num_gpu_blocks_override=9)  # fmt: skip
    decode = count_kernels(llm)
    layers = llm.llm_engine.model_config.num_layers
    assert decode.kernels.count("linear") == 4 * layers
    assert not {"view", "transpose", "slice", "unsqueeze", "t"} & set(decode.kernels)
    assert len(decode.kernels) + decode.num_views == len(decode.calls)
    assert not llm.llm_engine.has_unfinished_requests()
    model = llm.llm_engine.model_runner.model
    assert not model._forward_hooks  # it looks no longer
    assert not model._forward_pre_hooks
