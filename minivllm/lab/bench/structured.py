"""``minivllm bench structured``: what grammars cost, to compile, for each mask, and in a step.

Masks are filled along random walks: at each place one of the allowed tokens is accepted. Then a
batch of the embedded model writes such texts, and the time for masks is set beside the whole step.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from random import Random
from typing import Annotated, Any
from unittest import mock

import numpy as np

from minivllm.embedded import embedded_model_path
from minivllm.entrypoints.llm import LLM
from minivllm.lab.bench.machine import best_cpu_seconds
from minivllm.lab.bench.options import Threads, count
from minivllm.lab.bench.report import Report
from minivllm.lab.sim.result import percentiles
from minivllm.sampling_params import SamplingParams, StructuredOutputsParams
from minivllm.structured_output.backend_types import StructuredOutputGrammar
from minivllm.structured_output.manager import StructuredOutputManager
from minivllm.utils.toml_data import load_toml
from minivllm.worker import model_runner

WALKS = 50
PLACES = 40
MAX_TOKENS = 100

FORMS: dict[str, dict[str, Any]] = load_toml(__package__, "structured")
LONG = ("lines", "counted", "list")  # whose texts do not end before MAX_TOKENS


def bench_structured(
    batch_size: Annotated[int, count("Sequences that decode.")] = 16,
    threads: Threads = None,
) -> None:
    """Measure and print. Needs llguidance."""
    llm = LLM(
        max_model_len=512, max_num_seqs=batch_size, num_gpu_blocks_override=33 * batch_size,
        model=str(embedded_model_path()),
    )  # fmt: skip
    manager = llm.llm_engine.structured_output_manager
    vocab_size = len(manager.vocabulary)
    report = Report(
        "structured",
        {
            "model": "embedded",
            "vocabulary": vocab_size,
            "batch_size": batch_size,
            "places": WALKS * PLACES,
            "threads": threads,
            "clock": "CPU time of the thread",
        },
    )
    row = np.zeros((2, -(-vocab_size // 32)), dtype=np.int32)
    least = best_cpu_seconds(lambda: np.copyto(row[0], row[1]), number=1000) * 1e6
    report.ceiling({"us_per_row": least}, "to copy a row of bits that is there already")
    compile_ms = {name: _compile_ms(manager, form) for name, form in FORMS.items()}
    mask_us = {name: _mask_us(manager, form) for name, form in FORMS.items()}
    report.table(
        "masks",
        ("form", "compile, ms", "a row, µs: p50", "p99", "most"),
        [(name, compile_ms[name], *mask_us[name].values()) for name in FORMS],
    )
    steps = {name: _step(llm, FORMS[name], batch_size) for name in LONG}
    report.table(
        f"a decode step of {batch_size} sequences",
        ("form", "step, ms", "fill, µs", "apply, µs", "accept, µs", "fill and apply, share"),
        [(name, *found.values()) for name, found in steps.items()],
    )
    report.finish({"compile_ms": compile_ms, "mask_us": mask_us, "step": steps}, None)


def _compile_ms(manager: StructuredOutputManager, form: dict[str, Any]) -> float:
    """The best of several; what is known of the vocabulary is there already."""

    def compile_anew():
        manager._compiled.cache_clear()
        manager.compile_grammar(StructuredOutputsParams(**form), manager.eos_token_ids)

    return best_cpu_seconds(compile_anew) * 1e3


def _mask_us(manager: StructuredOutputManager, form: dict[str, Any]) -> dict[str, float]:
    """µs to fill a row; an automaton's first visits of its states included."""
    manager._compiled.cache_clear()
    rng = Random(0)
    times = []
    row = np.zeros((1, -(-len(manager.vocabulary) // 32)), dtype=np.int32)
    for _ in range(WALKS):
        grammar = manager.compile_grammar(StructuredOutputsParams(**form), manager.eos_token_ids)
        for _ in range(PLACES):
            begin = time.thread_time_ns()
            grammar.fill_bitmask(row, 0)
            times.append((time.thread_time_ns() - begin) / 1e3)
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")
            grammar.accept_tokens([int(rng.choice(np.flatnonzero(bits)))])
            if grammar.is_terminated():
                break
    found = percentiles(times, (50, 99))
    return {"p50": found["p50"], "p99": found["p99"], "max": max(times)}


def _step(llm: LLM, form: dict[str, Any], batch_size: int) -> dict[str, float]:
    """Mean CPU time of a decode step and of what grammars take of it."""
    engine = llm.llm_engine
    params = SamplingParams(
        temperature=1.0, seed=0, max_tokens=MAX_TOKENS, ignore_eos=True,
        structured_outputs=StructuredOutputsParams(**form),
    )  # fmt: skip
    spent = dict.fromkeys(("fill", "apply", "accept"), 0.0)
    with ExitStack() as stack:
        for name, owner, function in (
            ("fill", engine.structured_output_manager, "grammar_output"),
            ("apply", model_runner, "apply_grammar_bitmask"),
            ("accept", StructuredOutputGrammar, "accept_tokens"),
        ):
            stack.enter_context(_timed(owner, function, name, spent=spent))
        for index in range(batch_size):
            engine.add_request(str(index), f"Write a list, number {index}: ", params)
        engine.step()  # the prompts, and whatever is done once
        spent.update(dict.fromkeys(spent, 0.0))
        begin = time.thread_time()
        num_steps = 0
        while engine.has_unfinished_requests():
            engine.step()
            num_steps += 1
        total = time.thread_time() - begin
    return {
        "step_ms": total / num_steps * 1e3,
        **{f"{name}_us": seconds / num_steps * 1e6 for name, seconds in spent.items()},
        "share": (spent["fill"] + spent["apply"]) / total,
    }


def _timed(owner: Any, function: str, name: str, spent: dict[str, float]) -> Any:
    """Context manager: the CPU time of each call of ``owner.function`` adds to ``spent[name]``."""
    honest = getattr(owner, function)

    def timed(*args, **kwargs):
        begin = time.thread_time()
        try:
            return honest(*args, **kwargs)
        finally:
            spent[name] += time.thread_time() - begin

    return mock.patch.object(owner, function, timed)
