"""What the scheduler benchmark times: running decodes, hashing, lookups. And the least of each.

Each ``least_...`` is the ceiling: the work that no scheduler in Python can do without.
"""

from __future__ import annotations

import time
from hashlib import sha256
from random import Random

from minivllm.kv.block_pool import KVCacheBlock
from minivllm.kv.block_table import cdiv
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import PrefixCache
from minivllm.lab.bench.clock import best_cpu_seconds
from minivllm.request import Request, Sequence
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.scheduler import Scheduler

BLOCK_SIZE = 16
PROMPT_TOKENS = 128
MAX_MODEL_LEN = 8192


def prompt_of(index: int, num_tokens: int = PROMPT_TOKENS) -> list[int]:
    """A prompt that shares no block with another one's."""
    return [(index * 7919 + j * 31) % 900 + 5 for j in range(num_tokens)]


class RunningDecodes:
    """Our scheduler with so many sequences in it, all of which decode.

    Args:
        num_requests: that run.
        num_blocks: the pool's size.
        caching: of prefixes; on, every block that fills is hashed and registered.
    """

    def __init__(self, num_requests: int, num_blocks: int, caching: bool):
        self.num_requests = num_requests
        manager = KVCacheManager(num_blocks, BLOCK_SIZE, caching)
        budget = num_requests * PROMPT_TOKENS
        self.scheduler = Scheduler(manager, budget, num_requests, MAX_MODEL_LEN)
        params = SamplingParams(max_tokens=MAX_MODEL_LEN - PROMPT_TOKENS, ignore_eos=True)
        for index in range(num_requests):
            self.scheduler.add_request(Request(str(index), prompt_of(index), params))
        self.step()

    def step(self) -> float:
        """CPU seconds of one ``schedule()`` and one ``update_from_output()``.

        What lies between them is the model's and is not timed.
        """
        begin = time.process_time()
        plan = self.scheduler.schedule()
        planned = time.process_time()
        sampled = dict.fromkeys(plan.num_scheduled_tokens, 7)
        assert len(sampled) == self.num_requests, "all of them decode, all the time"
        executed = time.process_time()
        self.scheduler.update_from_output(plan, sampled)
        return planned - begin + time.process_time() - executed


def window_us(core) -> float:
    """µs per request and step, mean over the steps in which each request fills one block."""
    seconds = sum(core.step() for _ in range(BLOCK_SIZE))
    return seconds / BLOCK_SIZE / core.num_requests * 1e6


def least_step_us(num_requests: int) -> float:
    """µs per request to write down that it runs, to count its token and to append it."""
    request = Request("0", prompt_of(0), SamplingParams())
    seqs = [Sequence(request, index) for index in range(num_requests)]

    def touch_each_request():
        plan = {}
        for seq in seqs:
            plan[seq.seq_id] = 1
        for seq in seqs:
            seq.num_computed_tokens += plan[seq.seq_id]
            seq.token_ids.append(7)

    return best_cpu_seconds(touch_each_request, 50) / num_requests * 1e6


def long_prompt(num_blocks: int = 4096) -> list[int]:
    """A prompt to be hashed, of ids as a large vocabulary has them."""
    rng = Random(0)
    return [rng.randrange(150_000) for _ in range(num_blocks * BLOCK_SIZE)]


def hashing_us() -> float:
    """µs to name one block, the mean over the chain of a long prompt."""
    request = Request("0", long_prompt(), SamplingParams())
    num_blocks = len(request.prompt_token_ids) // BLOCK_SIZE
    cache, seq = PrefixCache(BLOCK_SIZE), request.seqs[0]

    def name_all_blocks():
        seq.block_hashes = []
        cache.block_hashes(seq, num_blocks)

    return best_cpu_seconds(name_all_blocks) / num_blocks * 1e6


def least_hashing_us(repeats: int = 4096) -> float:
    """µs for SHA-256 of as many bytes as name one block."""
    content = bytes(32 + 8 * BLOCK_SIZE)

    def digest_as_much():
        for _ in range(repeats):
            sha256(content).digest()

    return best_cpu_seconds(digest_as_much) / repeats * 1e6


def lookup_us(num_cached: int, num_hit: int = 64) -> tuple[float, float]:
    """``(hit, miss)``: µs to find one block of a chain, and to find that nothing is known.

    Args:
        num_cached: blocks in the cache, in chains of ``num_hit``.
        num_hit: blocks of the prompt that is looked up; their names are known already.
    """

    def chain_of(token_id: int) -> Sequence:
        prompt = [token_id] * (num_hit * BLOCK_SIZE + 1)  # a prompt's last token is never a hit
        return Sequence(Request(str(token_id), prompt, SamplingParams()), 0)

    cache = PrefixCache(BLOCK_SIZE)
    for chain in range(cdiv(num_cached, num_hit)):
        names = cache.block_hashes(chain_of(chain), num_hit)
        for name in names[: num_cached - chain * num_hit]:
            cache.add(KVCacheBlock(0), name)
    known, stranger, repeats = chain_of(0), chain_of(-1), 200
    hits = len(cache.find_longest_cache_hit(known))
    assert hits == min(num_cached, num_hit)
    assert cache.find_longest_cache_hit(stranger) == []

    def look_up(seq):
        for _ in range(repeats):
            cache.find_longest_cache_hit(seq)

    hit = best_cpu_seconds(lambda: look_up(known)) / repeats / hits
    miss = best_cpu_seconds(lambda: look_up(stranger)) / repeats
    return hit * 1e6, miss * 1e6


def least_lookup_us(num_cached: int) -> float:
    """µs to get one entry of a dict of that size by 32 bytes."""
    names = [sha256(str(index).encode()).digest() for index in range(num_cached)]
    known, wanted = dict.fromkeys(names, 0), names[:64]

    def get_each():
        for _ in range(100):
            for name in wanted:
                known.get(name)

    return best_cpu_seconds(get_each) / 100 / len(wanted) * 1e6
