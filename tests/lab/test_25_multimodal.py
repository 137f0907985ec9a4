"""Notebook 25: patches in slots, parts in the best order, an album in a small cache."""

from itertools import permutations

import pytest

from minivllm.course.ch25 import exercises
from minivllm.sim import dry_run, picture_request
from minivllm.trace.records import ItemEncoded, Scheduled
from minivllm.viz import patch_slots

COLOURS = [["#102030", "#ffffff", "#808080"], ["#000000", "#aa0000", "#00aa00"]]


def square(**sizes):
    """One prompt: three tokens, a picture of six patches, two tokens."""
    asked = picture_request("A", [[1, 2, 3], ("square", 6), [1, 2]], num_output=3)
    sizes = {"max_num_encoder_input_tokens": 6, "encoder_cache_size": 6} | sizes
    return dry_run([asked], num_blocks=9, block_size=4, **sizes)


def test_each_patch_is_in_the_slot_of_its_position():
    figure = patch_slots(square(), "A", COLOURS)
    assert figure.text.splitlines()[2:] == [
        "block 1: 3 text tokens, patches 0 to 0",
        "block 2: patches 1 to 4",
        "block 3: 2 text tokens, patches 5 to 5",
    ]
    for patch in range(6):
        assert figure.svg.count(f">patch {patch}<") == 1
    with pytest.raises(ValueError, match="6, as the prompt"):
        patch_slots(square(), "A", COLOURS[:1])
    text = dry_run([picture_request("A", [[1, 2]], 1)], num_blocks=9)
    with pytest.raises(ValueError, match="a sequence with a picture"):
        patch_slots(text, "A", COLOURS)


def test_a_dry_run_has_both_budgets():
    trace = square(max_num_batched_tokens=5)
    assert [r.num_tokens for r in trace.of(Scheduled)] == [5, 5, 1, 1, 1]
    assert [r.step for r in trace.of(ItemEncoded)] == [0]
    with pytest.raises(ValueError, match="max_num_encoder_input_tokens is 5"):
        square(max_num_encoder_input_tokens=5)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_order_begins_with_what_most_requests_share(seed):
    given = exercises.order(seed=seed).given
    names, found = exercises._solve_order(**given)
    different = [given[{"rules": "num_rules", "picture": "num_pictures",
                        "question": "num_questions"}[name]] for name in names]  # fmt: skip
    assert different == sorted(different)
    assert found == max(exercises._hits(given, order) for order in permutations(names))


@pytest.mark.parametrize("seed", range(3))
def test_one_embedding_less_and_a_picture_is_encoded_again(seed):
    given = exercises.album(seed=seed).given
    cache = exercises._solve_album(**given)
    different = len(set(given["asked"]))
    assert exercises._num_encoded(**given, cache=cache) == different
    assert exercises._num_encoded(**given, cache=cache - 1) > different
