"""Operations and bytes of a step, and the roof above them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.bench.roofline import work_of
from minivllm.bench.workloads import BenchRequest
from minivllm.models.embedded import embedded_model_path
from minivllm.models.model_config import ModelConfig
from minivllm.sim.cost import HARDWARE, MODELS, CostModel, Hardware, Work, attended_pairs

A100, LLAMA = HARDWARE["a100"], MODELS["llama-8b"]
TOY = Hardware("toy", flops_per_s=400.0, bytes_per_s=100.0, memory_bytes=1.0)

# -- what a step computes and moves --------------------------------------------------------------


def decodes(batch, context):
    return [(context - 1, 1)] * batch


def test_a_decode_step_by_hand():
    work = LLAMA.step_work(decodes(8, 1000))
    assert work.flops == 8 * (2 * 8.03e9 + 4 * 32 * 32 * 128 * 1000)
    assert work.num_bytes == 16.06e9 + 8 * 1001 * 131_072  # one token's K and V are written
    assert work.intensity == work.flops / work.num_bytes


@settings(max_examples=30)
@given(sequences=st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 900)), min_size=1))
def test_the_simulators_clock_is_the_roofline_of_this_work(sequences):
    """Any mixture of chunks and decodes; the clock adds what each step costs anyway."""
    num_tokens = sum(new for _, new in sequences)
    pairs = sum(attended_pairs(*sequence) for sequence in sequences)
    num_kv = sum(map(sum, sequences)) + num_tokens
    seconds = CostModel(A100, LLAMA).step_seconds(num_tokens, pairs, num_kv)
    least = A100.least_seconds(LLAMA.step_work(sequences))
    assert seconds == pytest.approx(least + A100.overhead_s)


def test_a_prompt_in_chunks_is_the_same_arithmetic_and_more_reading():
    whole = LLAMA.step_work([(0, 2048)])
    chunks = [LLAMA.step_work([(start, 512)]) for start in range(0, 2048, 512)]
    assert sum(chunk.flops for chunk in chunks) == whole.flops
    more = sum(chunk.num_bytes for chunk in chunks) - whole.num_bytes
    assert more == 3 * LLAMA.weight_bytes + (512 + 1024 + 1536) * 131_072


@pytest.mark.parametrize("name", MODELS)
def test_attention_alone_does_the_group_size_per_number_whatever_the_batch(name):
    model = MODELS[name]
    group = model.num_heads / model.num_kv_heads
    for batch in (1, 64, 1000):
        work = model.attention_work(decodes(batch, 4096))
        expected = 2 * group / model.bytes_per_number * 4096 / 4097  # one token is written
        assert work.intensity == pytest.approx(expected)


def test_the_benchmarks_count_the_same():
    """``work_of`` counts from a config, matrix by matrix; a shape from the number of parameters.

    The embedded model's head is its embedding, so that every parameter is multiplied.
    """
    config = ModelConfig.from_directory(embedded_model_path())
    counted = work_of(config, [[BenchRequest([1] * 99, 2)] * 16], 4)
    step = MODELS["embedded"].step_work(decodes(16, 100))
    assert counted.decode_flops == pytest.approx(step.flops, rel=0.01)
    assert counted.decode_bytes == pytest.approx(step.num_bytes, rel=0.01)


# -- the roof ------------------------------------------------------------------------------------


def test_the_roof_bends_at_the_ridge():
    assert TOY.ridge == 4.0
    assert [TOY.attainable(x) for x in (1, 2, 4, 8)] == [100, 200, 400, 400]
    assert A100.ridge == 156
    for work, seconds in [(Work(100, 50), 0.5), (Work(400, 100), 1.0), (Work(800, 100), 2.0)]:
        assert TOY.least_seconds(work) == seconds
        assert work.flops / seconds == TOY.attainable(work.intensity)
    assert Work(1, 2) + Work(3, 4) == Work(4, 6)
