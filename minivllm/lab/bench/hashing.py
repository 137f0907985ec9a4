"""Prefix cache timings: block hashing and lookup, each with the least it can take."""

from __future__ import annotations

from hashlib import sha256

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.prefix_cache import PrefixCache
from minivllm.lab.bench.machine import best_cpu_seconds
from minivllm.lab.bench.workloads import BLOCK_SIZE, long_prompt
from minivllm.lab.sim.make import make_request
from minivllm.request import Sequence
from minivllm.utils.math_utils import cdiv


def hashing_us() -> float:
    """µs to hash one block, the mean over the chain of a long prompt."""
    request = make_request("0", long_prompt())
    num_blocks = len(request.prompt_token_ids) // BLOCK_SIZE
    cache = PrefixCache(BLOCK_SIZE)
    seq = request.seqs[0]

    def hash_all_blocks():
        seq.block_hashes = []
        cache.block_hashes(seq, num_blocks)

    return best_cpu_seconds(hash_all_blocks) / num_blocks * 1e6


def least_hashing_us(repeats: int = 4096) -> float:
    """µs for SHA-256 of as many bytes as are hashed for one block."""
    content = bytes(32 + 8 * BLOCK_SIZE)
    return best_cpu_seconds(lambda: sha256(content).digest(), number=repeats) * 1e6


def lookup_us(num_cached: int, num_hit: int = 64) -> tuple[float, float]:
    """``(hit, miss)``: µs per block of a prefix that is cached, and µs for one that is not.

    Args:
        num_cached: blocks in the cache, in chains of ``num_hit``.
        num_hit: blocks of the prompt that is looked up; their hashes are computed already.
    """

    def chain_of(token_id: int) -> Sequence:
        prompt = [token_id] * (num_hit * BLOCK_SIZE + 1)  # a prompt's last token is never a hit
        return Sequence(make_request(str(token_id), prompt), 0)

    cache = PrefixCache(BLOCK_SIZE)
    for chain in range(cdiv(num_cached, num_hit)):
        hashes = cache.block_hashes(chain_of(chain), num_hit)
        for block_hash in hashes[: num_cached - chain * num_hit]:
            cache.add(KVCacheBlock(0), block_hash)
    known, stranger = chain_of(0), chain_of(-1)
    hits = len(cache.find_longest_cache_hit(known))
    assert hits == min(num_cached, num_hit)
    assert cache.find_longest_cache_hit(stranger) == []

    hit = best_cpu_seconds(lambda: cache.find_longest_cache_hit(known), number=200) / hits
    miss = best_cpu_seconds(lambda: cache.find_longest_cache_hit(stranger), number=200)
    return hit * 1e6, miss * 1e6


def least_lookup_us(num_cached: int) -> float:
    """µs to get one entry of a dict of that size by 32 bytes."""
    names = [sha256(str(index).encode()).digest() for index in range(num_cached)]
    known = dict.fromkeys(names, 0)
    wanted = names[:64]

    def get_each():
        for name in wanted:
            known.get(name)

    return best_cpu_seconds(get_each, number=100) / len(wanted) * 1e6
