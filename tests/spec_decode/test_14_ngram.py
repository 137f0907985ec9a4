"""The n-gram proposer: vLLM's own answers, brute force, and the index against the rule."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minivllm.spec_decode.ngram import NgramIndex, propose

# 316 calls of vLLM 0.32.0's proposer: tokens, windows, k, max_model_len, and what it drafted.
CASES = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "data" / "ngram_cases.json.gz").read_bytes())
)


def arguments(case):
    return case["tokens"], case["min_n"], case["max_n"], case["k"], case["max_model_len"]


def by_index(tokens, min_n, max_n, k, max_model_len):
    index = NgramIndex(max_n)
    for token_id in tokens:
        index.append(token_id)
    k = min(k, max_model_len - len(tokens))
    if k <= 0 or index.found_length < min_n:
        return []
    return tokens[index.first_end : index.first_end + k]


def by_brute_force(tokens, min_n, max_n, k, max_model_len):
    n = len(tokens)
    k = min(k, max_model_len - n)
    for length in range(max_n, min_n - 1, -1):
        for start in range(n - length):
            if k > 0 and tokens[start : start + length] == tokens[n - length :]:
                return tokens[start + length : start + length + k]
    return []


@pytest.mark.parametrize("answer", [propose, by_index])
def test_equal_to_vllm(answer):
    assert len(CASES) == 316
    for case in CASES:
        assert answer(*arguments(case)) == case["drafts"], case


@pytest.mark.parametrize(
    ("tokens", "min_n", "max_n", "k", "drafts"),
    [
        ([5, 6, 7, 8, 9, 6, 7], 2, 3, 3, [8, 9, 6]),
        ([5, 6, 7, 8, 9, 6, 7], 3, 3, 3, []),
        ([1, 2, 50, 1, 2, 60, 1, 2], 2, 2, 2, [50, 1]),  # the earliest, not the last
        ([9, 1, 2, 71, 3, 1, 2, 80, 3, 1, 2], 1, 3, 1, [80]),  # the longest first
        ([9, 1, 2, 71, 3, 1, 2, 80, 3, 1, 2], 1, 2, 1, [71]),
        ([4, 4, 4], 1, 2, 3, [4]),  # an occurrence may overlap the suffix
        ([2, 3, 4], 1, 3, 3, []),
        ([], 1, 3, 3, []),
    ],
)
def test_the_rule(tokens, min_n, max_n, k, drafts):
    assert propose(tokens, min_n, max_n, k, 100) == drafts
    assert by_index(tokens, min_n, max_n, k, 100) == drafts


def test_nothing_is_drafted_beyond_the_longest_sequence():
    tokens = [1, 2, 3, 1, 2]
    assert [propose(tokens, 2, 2, 4, limit) for limit in (8, 7, 6, 5, 4)] == [
        [3, 1, 2], [3, 1], [3], [], [],
    ]  # fmt: skip


@given(
    tokens=st.integers(1, 5).flatmap(lambda v: st.lists(st.integers(0, v), max_size=40)),
    min_n=st.integers(1, 4),
    more=st.integers(0, 6),
    k=st.integers(1, 6),
    max_model_len=st.integers(1, 50),
)
def test_equal_to_brute_force_after_every_token(tokens, min_n, more, k, max_model_len):
    index, max_n = NgramIndex(min_n + more), min_n + more
    for n, token_id in enumerate(tokens, 1):
        index.append(token_id)
        so_far = tokens[:n]
        wanted = by_brute_force(so_far, min_n, max_n, k, max_model_len)
        assert propose(so_far, min_n, max_n, k, max_model_len) == wanted
        room = min(k, max_model_len - n)
        found = index.found_length >= min_n and room > 0
        assert (so_far[index.first_end :][:room] if found else []) == wanted


def test_the_index_stays_linear_where_everything_repeats():
    """Its states are what it costs: at most two a token (Blumer et al.), whatever the windows."""
    for tokens in ([7] * 3000, [i % 2 for i in range(3000)], [i * i % 97 for i in range(3000)]):
        index = NgramIndex(500)
        for token_id in tokens:
            index.append(token_id)
        assert len(index._next) <= 2 * len(tokens)
        assert tokens[index.first_end :][:5] == propose(tokens, 1, 500, 5, 10**6)
