"""The cache of processed items: bounded by bytes, the least recently used goes first."""

import random
import threading
from collections import OrderedDict

import numpy as np
import pytest

from minivllm.multimodal.processing import ProcessedItem
from minivllm.multimodal.processor_cache import ProcessorCache


def item(num_bytes):
    """An item of so many bytes, 8 of them for its only token."""
    return ProcessedItem({"x": np.zeros(num_bytes - 8, np.uint8)}, [1])


def test_the_least_recently_used_gives_way():
    cache = ProcessorCache(100)
    for name in "abc":
        cache.put(name, item(30))
    assert cache.get("a") is not None
    cache.put("d", item(30))
    assert [name for name in "abcd" if cache.get(name)] == ["a", "c", "d"]
    cache.put("e", item(90))
    assert (len(cache), cache.num_bytes) == (1, 90)


def test_what_is_too_large_is_not_kept_and_drives_nothing_out():
    cache = ProcessorCache(100)
    cache.put("a", item(60))
    cache.put("b", item(101))
    assert cache.get("a") is not None
    assert cache.get("b") is None
    cache.put("a", item(100))  # another of the same name takes its place
    assert (len(cache), cache.num_bytes) == (1, 100)


@pytest.mark.parametrize("capacity", [0, 50, 300])
def test_like_a_list_of_what_was_used(capacity):
    rng = random.Random(capacity)
    cache, model = ProcessorCache(capacity), OrderedDict()
    for _ in range(500):
        name, size = rng.choice("abcdefgh"), rng.randint(8, 120)
        assert (cache.get(name) is not None) == (name in model)
        if name in model:
            model.move_to_end(name)
            continue
        cache.put(name, item(size))
        if size <= capacity:
            model[name] = size
        while sum(model.values()) > capacity:
            model.popitem(last=False)
        assert cache.num_bytes == sum(model.values()) <= capacity


def test_threads_share_it():
    cache = ProcessorCache(200)

    def use(seed):
        rng = random.Random(seed)
        for _ in range(300):
            name = rng.choice("abcdefghij")
            if cache.get(name) is None:
                cache.put(name, item(40))

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(cache), cache.num_bytes) == (5, 200)
    assert cache.num_queries == 1200
