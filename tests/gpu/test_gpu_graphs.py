"""CUDA graphs: a replay computes, bit for bit, what the same step computes eagerly."""

import re

import pytest
import torch
from cuda_stand_ins import CallsAgain

from minivllm import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

PROMPT = "The capital of France is"


@pytest.fixture
def with_graphs(on_device, on_card):
    """Make an engine that replays its decodes; without a card, by a stand-in."""

    def make(**kwargs):
        llm = on_device(**kwargs)
        engine = llm.llm_engine
        if not on_card:
            engine.model_runner.capture_decodes([1, 2, 4], engine.max_model_len, CallsAgain())
        return llm

    return make


def compare_replays(runner):
    """Let every replay be followed by an eager run on the same buffers; returns the sizes seen."""
    graphs, sizes = runner.cuda_graph_runner, []
    replay = graphs.replay

    def replay_and_compare(*args):
        hidden = replay(*args)
        replayed = hidden.clone()
        graphs._run(len(hidden))
        assert torch.equal(graphs.hidden[: len(hidden)], replayed)
        sizes.append(len(hidden))
        return hidden

    graphs.replay = replay_and_compare
    return sizes


def test_every_size_bit_for_bit(with_graphs, on_card):
    """One request more each time: captured sizes, and those between, which are padded."""
    most = 20 if on_card else 3
    llm = with_graphs(max_num_seqs=most, max_model_len=64)
    runner = llm.llm_engine.model_runner
    sizes = compare_replays(runner)
    for number in range(1, most + 1):
        params = [SamplingParams(temperature=0, max_tokens=2 + i % 3, ignore_eos=True)
                  for i in range(number)]  # fmt: skip
        llm.generate([PROMPT] * number, params, use_tqdm=False)
    assert {1, 2, 4} <= set(sizes) <= set(runner.cuda_graph_runner.sizes)
    if on_card:
        assert set(sizes) == {1, 2, 4, 8, 16, 20}


def test_graphs_change_no_token(with_graphs, on_device, on_card):
    params = SamplingParams(temperature=0, max_tokens=16 if on_card else 4, ignore_eos=True)
    said = []
    for llm in (with_graphs(), on_device(enforce_eager=True)):
        outputs = llm.generate([PROMPT, "Hello, my"], params, use_tqdm=False)
        said.append([output.outputs[0].token_ids for output in outputs])
    assert said[0] == said[1]


def test_a_replay_reads_what_padding_has_left_nowhere(with_graphs):
    """The null block, in which padded rows write, is NaN before each step."""
    llm = with_graphs(max_num_seqs=4, max_model_len=64)
    runner = llm.llm_engine.model_runner
    prepare = runner.prepare_inputs

    def poison(plan):
        runner.kv_cache.data[:, :, 0] = torch.nan
        return prepare(plan)

    runner.prepare_inputs = poison
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=1)
    outputs = llm.generate([PROMPT] * 3, params, use_tqdm=False)
    for output in outputs:
        for logprobs in output.outputs[0].logprobs:
            assert all(known.logprob == known.logprob for known in logprobs.values())


def test_their_memory_is_as_told(card_only, on_device, caplog, monkeypatch):
    import logging

    monkeypatch.setattr(logging.getLogger("minivllm"), "propagate", True)
    with caplog.at_level(logging.INFO, logger="minivllm"):
        on_device(max_num_seqs=16)
        free_now = torch.cuda.mem_get_info()[0]
    (line,) = (m for m in caplog.messages if m.startswith("Graph capturing finished"))
    size, unit = re.search(r"took ([\d.,]+) (GiB|MiB)", line).groups()
    told = float(size.replace(",", "")) * (2**30 if unit == "GiB" else 2**20)
    assert 0 <= told < 2**30, line
    assert free_now > 0
