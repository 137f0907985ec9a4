"""Exercises of notebook 24, held to the scheduler: tokens that a prefix cache saves."""

import pytest

from minivllm.exercises import ch24, make_request
from minivllm.sim import dry_run
from minivllm.trace.records import Scheduled


@pytest.mark.parametrize("seed", range(4))
def test_an_instruction_in_front_is_found_and_one_behind_is_not(seed):
    exercise = ch24.cached(seed)
    given = exercise.given
    size, own = given["instruction_len"], given["request_len"]
    instruction = list(range(1000, 1000 + size))

    def computed(in_front):
        """Prompt tokens of requests that come one after the other."""
        total = 0
        requests = []
        for number in range(given["num_requests"]):
            text = [10_000 * (number + 1) + i for i in range(own)]
            ids = instruction + text if in_front else text + instruction
            requests.append(make_request(str(number), ids, 1, number))
        trace = dry_run(
            requests, num_blocks=4000, block_size=given["block_size"], enable_prefix_caching=True
        )
        for record in trace.of(Scheduled):
            total += record.num_tokens
        return total

    front, behind, _ = exercise.solve()
    assert (computed(True), computed(False)) == (front, behind)
