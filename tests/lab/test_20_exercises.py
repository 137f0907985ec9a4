"""Exercises of notebook 20: solutions are what the package does."""

import pytest
import torch

from minivllm.distributed.shard import divides, kv_head_share
from minivllm.embedded import embedded_model_path
from minivllm.exercises import ch20
from minivllm.lab.oracle import next_token_logits
from minivllm.lab.ranks import run_ranks
from minivllm.lab.sim.interconnects import ring_bytes
from minivllm.models.loader import load_config, load_model

SEEDS = range(5)


def test_all_reduces_and_their_bytes_are_those_of_a_model():
    source = embedded_model_path()
    config = load_config(source)

    def exchanged(group):
        args = source, config, torch.bfloat16, torch.device("cpu")
        next_token_logits(load_model(*args, group=group), list(range(9)))
        return [op.num_bytes for op in group.operations if op.op == "all_reduce"]

    number, given, sent = ch20.wire(0).solution(config.num_layers, config.hidden_size, 9, 4)
    assert sent == ring_bytes(given, 4)
    for num_bytes in run_ranks(4, exchanged):
        assert (len(num_bytes), sum(num_bytes)) == (number, given)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_keeps_the_heads_that_the_engine_gives_it(seed):
    exercise = ch20.kv_bytes(seed)
    results = [exercise.solve()(*call) for call in exercise.calls]
    assert 0 < results.count(None) < len(results)
    for (num_heads, num_kv_heads, head_dim, size), result in zip(
        exercise.calls, results, strict=True
    ):
        if divides(num_heads, num_kv_heads, num_heads * size, size):
            heads = kv_head_share(num_kv_heads, 0, size)
            assert result == 4 * head_dim * (heads.stop - heads.start)
        else:
            assert result is None
