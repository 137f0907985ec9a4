"""Adapters and the scheduler: slots, skipped requests, a stream that lets another one starve."""

import pytest

from minivllm.exercises import make_request
from minivllm.lora.request import LoRARequest
from minivllm.sim import dry_run, prefix_hits
from minivllm.trace.records import LoRAEvicted, LoRALoaded, RequestSkipped, Scheduled


def adapter(number, path=None):
    return LoRARequest(f"adapter {number}", number, path or f"adapters/{number}")


def request(name, number, num_tokens, step=0):
    lora_request = None if number is None else adapter(number)
    return make_request(name, 5, num_tokens, step, lora_request=lora_request)


def begun(trace):
    """The step in which each request was first scheduled."""
    return {record.seq_id: record.step for record in trace.of(Scheduled) if record.kind == "new"}


def test_a_request_without_a_slot_is_skipped_and_others_overtake_it():
    queue = [request("A", 1, 4), request("B", 2, 3), request("C", None, 2), request("D", 1, 2)]
    trace = dry_run(queue, num_blocks=99, max_loras=1)
    assert begun(trace) == {"A": 0, "C": 0, "D": 0, "B": 4}
    assert {record.request_id for record in trace.of(RequestSkipped)} == {"B"}


@pytest.mark.parametrize(("max_loras", "first"), [(1, 25), (2, 1)])
def test_a_steady_stream_starves_another_adapter(max_loras, first):
    stream = [request(f"p{i}", 1, 4, 3 * i) for i in range(8)]
    trace = dry_run([*stream, request("S", 2, 3, 1)], num_blocks=99, max_loras=max_loras)
    assert begun(trace)["S"] == first


def test_the_least_recently_used_adapter_gives_way():
    queue = [request(str(i), number, 1, i) for i, number in enumerate([1, 2, 3, 1, 4, 1])]
    trace = dry_run(queue, num_blocks=99, max_loras=2)
    loads = [(record.lora_int_id, record.slot) for record in trace.of(LoRALoaded)]
    assert loads == [(1, 0), (2, 1), (3, 0), (1, 1), (4, 0)]
    assert [record.lora_int_id for record in trace.of(LoRAEvicted)] == [1, 2, 3]


def test_only_the_same_adapter_finds_the_blocks_of_a_prompt():
    def prompt(name, step, **given):
        return make_request(name, list(range(16)), 1, step, **given)

    queue = [
        prompt("base", 0),
        prompt("first", 1, lora_request=adapter(1)),
        prompt("second", 2, lora_request=adapter(2)),
        prompt("first again", 3, lora_request=adapter(1)),
        prompt("another path", 4, lora_request=adapter(1, "elsewhere")),
        prompt("salt", 5, cache_salt="adapter 1"),
    ]
    trace = dry_run(queue, num_blocks=99, block_size=4, enable_prefix_caching=True, max_loras=2)
    assert list(prefix_hits(trace).values()) == [0, 0, 0, 12, 0, 0]
