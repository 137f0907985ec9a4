"""Pictures in block hashes: the same placeholders of another picture are another prefix."""

import random

import pytest
from helpers import caching

from minivllm import SamplingParams
from minivllm.kv.prefix_cache import PrefixCache, generate_block_hash_extra_keys
from minivllm.lora.request import LoadedLoRA
from minivllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from minivllm.request import Request


def with_items(token_ids, *items, **kwargs):
    """A request with items, each an identifier, its first placeholder and their number."""
    features = [
        MultiModalFeatureSpec(None, "image", name, PlaceholderRange(offset, length))
        for name, offset, length in items
    ]
    return Request("a", list(token_ids), SamplingParams(), mm_features=features, **kwargs)


def hashes_of(request, block_size=4):
    seq = request.seqs[0]
    return PrefixCache(block_size).block_hashes(seq, seq.num_tokens // block_size)


def test_each_piece_has_the_items_that_it_touches_and_their_place_in_it():
    request = with_items([7] * 20, ("cat", 3, 6), ("dog", 9, 2), cache_salt="s")
    request.lora = LoadedLoRA(1, "pirate", "path", "digest")
    adapter_and_salt = ("lora", *request.lora[1:], "salt", "s")
    keys = [generate_block_hash_extra_keys(request, i, i + 4) for i in range(0, 20, 4)]
    assert keys == [
        (*adapter_and_salt, ("mm", "cat", 3)),
        (("mm", "cat", -1),),
        (("mm", "cat", -5), ("mm", "dog", 1)),
        (),
        (),
    ]


def test_text_has_the_hashes_that_it_had():
    assert generate_block_hash_extra_keys(with_items([7] * 9), 0, 4) == ()
    salted = with_items([7] * 9, cache_salt="s")
    assert generate_block_hash_extra_keys(salted, 0, 4) == ("salt", "s")
    assert generate_block_hash_extra_keys(salted, 4, 8) == ()


def drawn_pair(rng):
    """Two requests of the same tokens; the place of the first difference of their items."""
    size = rng.randrange(6, 28)
    items, position = [], rng.randrange(4)
    while position < size - 1:
        length = min(rng.randrange(1, 9), size - position)
        items.append((rng.choice("abc"), position, length))
        position += length + rng.randrange(3)
    others = [(rng.choice("abc"), offset, length) for _, offset, length in items]
    different = [a[1] for a, b in zip(items, others, strict=True) if a != b]
    token_ids = [rng.randrange(2) for _ in range(size)]
    for _, offset, length in items:
        token_ids[offset : offset + length] = [4] * length
    return (token_ids, items), (token_ids, others), min(different, default=size)


def test_no_block_is_shared_from_the_first_different_picture_on():
    """And each block before it is."""
    rng = random.Random(25)
    num_different = 0
    for _ in range(10_000):
        (tokens, items), (others, other_items), place = drawn_pair(rng)
        one = hashes_of(with_items(tokens, *items))
        other = hashes_of(with_items(others, *other_items))
        same = [a == b for a, b in zip(one, other, strict=True)]
        assert same == [block * 4 + 4 <= place for block in range(len(one))]
        assert not set(one[place // 4 :]) & set(other)
        num_different += place < len(tokens)
    assert num_different > 5_000


@pytest.mark.parametrize(
    ("items", "num_hit"),
    [
        ([("cat", 4, 8)], 12),
        ([("dog", 4, 8)], 4),
        ([("cat", 4, 9)], 12),  # it ends later: what comes behind differs
        ([("cat", 5, 7)], 4),  # it begins later
        ([("cat", 4, 4), ("cat", 8, 4)], 8),  # twice: the second begins again
        ([], 4),
    ],
)
def test_a_hit_needs_the_same_picture_at_the_same_place(items, num_hit):
    manager = caching()
    first = with_items(range(16), ("cat", 4, 8)).seqs[0]
    manager.allocate_new_computed_blocks(first, manager.get_computed_blocks(first))
    assert manager.allocate_slots(first, 16, []) is not None
    again = with_items(range(16), *items).seqs[0]
    assert manager.get_computed_blocks(again).num_tokens == num_hit
