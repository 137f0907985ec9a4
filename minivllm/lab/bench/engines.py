"""Engine: the interface of a benchmarked engine; minivllm behind it, and the list of peers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from minivllm.entrypoints.llm import LLM
from minivllm.lab.bench.peers import (
    OfflineEngine,
    TransformersContinuousEngine,
    TransformersEngine,
    VllmEngine,
)
from minivllm.lab.bench.workloads import Round
from minivllm.sampling_params import SamplingParams
from minivllm.validation import check


class Engine(Protocol):
    """A benchmarked engine: loads a model once, then answers rounds of requests.

    Everybody decodes greedily (samples of one prompt at temperature 1), ignores the
    end-of-sequence token and makes no text.
    """

    name: str
    num_cached_tokens: int  # of the last run's prompts, those that a prefix cache had; 0: unknown

    def fresh(self, rounds: list[Round]) -> AbstractContextManager:
        """Untimed context of a run: caches of earlier runs must be cleared."""

    def run(self, rounds: list[Round]) -> list[list[int]]:
        """All answers' token ids, samples side by side, in the order of the requests."""


class MinivllmEngine(OfflineEngine):
    """``minivllm.LLM`` as a benchmark engine."""

    name = "minivllm"
    make_params = SamplingParams

    def __init__(self, directory: Path, dtype: str, **options):
        self.llm = LLM(str(directory), dtype=dtype, skip_tokenizer_init=True, **options)


PEERS = {peer.name: peer for peer in (TransformersEngine, TransformersContinuousEngine, VllmEngine)}


def is_installed(peer: str) -> bool:
    """Can this peer's package be imported here?"""
    return find_spec(PEERS[peer].package) is not None


def engines_for(against: list[str], peer_python: Path | None = None) -> list[type]:
    """The classes of our engine and of these peers, which another interpreter may have installed.

    Raises:
        ValueError: for a name that is none, or that is not installed.
    """
    for name in against:
        names = ", ".join(map(repr, PEERS))
        check(name in PEERS, "against", name, f"one of {names}")
        ok = peer_python is not None or is_installed(name)
        check(ok, "against", name, "installed in this environment")
    if peer_python is not None:
        ok = bool(against) and peer_python.is_file()
        check(ok, "peer_python", str(peer_python), "the file of an interpreter that has the peers")
    return [MinivllmEngine, *(PEERS[name] for name in dict.fromkeys(against))]
