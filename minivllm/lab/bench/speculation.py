"""``minivllm bench speculation``: steps and seconds with drafts and without, and what each costs.

A step that verifies drafts has more rows than a decode. So two numbers decide whether speculation
pays: how many tokens such a step gives, which is the text's affair, and how much longer it takes,
which is the machine's.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
import typer

from minivllm.embedded import embedded_draft_path
from minivllm.entrypoints.llm import LLM
from minivllm.lab.bench import machine
from minivllm.lab.bench.options import Repeats, Threads
from minivllm.lab.bench.report import Report
from minivllm.lab.bench.roofline import shape_of
from minivllm.lab.bench.speculation_texts import Texts, texts
from minivllm.lab.sim.make import make_request
from minivllm.metrics.spec_decode import SpecDecodingStats
from minivllm.request import Sequence
from minivllm.sampling_params import SamplingParams
from minivllm.spec_decode.proposer import NgramProposer

NUM_ROWS = (1, 2, 4, 6, 9)  # of a sequence in a step
BATCHES = ((1, 256), (1, 1500), (4, 256), (16, 256))  # sequences, tokens of each
LOOKUP_FIRST = {"prompt_lookup_min": 2, "prompt_lookup_max": 3}  # then the draft model is asked
STEPS = 24  # of a batch that are timed; the quickest quarter counts
PROPOSER_TOKENS = 4096


def bench_speculation(
    num_speculative_tokens: Annotated[int, typer.Option(help="The most n-gram drafts.")] = 5,
    prompt_lookup_min: Annotated[int, typer.Option(help="The shortest n-gram.")] = 1,
    prompt_lookup_max: Annotated[int, typer.Option(help="The longest n-gram.")] = 3,
    draft_model: Annotated[
        str, typer.Option(help="The directory of a draft model; embedded: the one that ships.")
    ] = "embedded",
    draft_tokens: Annotated[int, typer.Option(help="Its drafts of a step.")] = 3,
    repeats: Repeats = 3,
    threads: Threads = None,
) -> None:
    """Measure and print, with the embedded model, which knows what the texts ask.

    The draft model is measured alone, and where n-grams of at least two tokens are looked up first.
    """
    ngram = {
        "method": "ngram", "num_speculative_tokens": num_speculative_tokens,
        "prompt_lookup_min": prompt_lookup_min, "prompt_lookup_max": prompt_lookup_max,
    }  # fmt: skip
    path = str(embedded_draft_path()) if draft_model == "embedded" else draft_model
    draft = {"model": path, "num_speculative_tokens": draft_tokens}
    configs = {"none": None, "ngram": ngram, "draft_model": draft, "both": draft | LOOKUP_FIRST}
    report = Report(
        "speculation",
        {
            "model": "embedded",
            **ngram,
            "draft_model": draft_model,
            "threads": threads,
            "clock": f"wall time at batch 1, the best of {repeats} answers to each question",
        },
    )
    engines = {name: _engine(config) for name, config in configs.items()}
    found: dict[str, Any] = {
        kind: _answers(engines, some, repeats) for kind, some in texts().items()
    }
    for name in list(configs)[1:]:
        report.table(
            f"{name}: answers at batch 1",
            ("text", "tokens a step", "drafts accepted", "seconds over those without"),
            [
                (kind, one[name]["tokens_per_step"], f"{one[name]['accepted_share']:.0%}",
                 one[name]["seconds_ratio"])
                for kind, one in found.items()
            ],
        )  # fmt: skip
    found["step"] = _step_costs(report, engines["none"])
    found["proposer_us"] = _proposer_us(prompt_lookup_min, prompt_lookup_max, ngram)
    report.note(
        f"The n-gram proposer takes {found['proposer_us']:.1f} µs for a token more of "
        f"{PROPOSER_TOKENS:,} and the drafts that follow it."
    )
    report.finish(found, None)


def _engine(config: dict | None) -> LLM:
    return LLM(max_model_len=2048, num_gpu_blocks_override=2200, speculative_config=config)


# -- answers ---------------------------------------------------------------------------------------


def _counts(llm: LLM) -> np.ndarray:
    """Numbers of an engine so far: tokens, steps, drafts, accepted drafts."""
    metrics = llm.llm_engine.metrics
    steps = sum(metrics.histograms["iteration_tokens_total"].counts)
    drafts = metrics.spec_decoding or SpecDecodingStats(0)
    return np.array([metrics.num_generation_tokens, steps, drafts.num_draft_tokens,
                     drafts.num_accepted_tokens])  # fmt: skip


def _answers(engines: dict[str, LLM], some: Texts, repeats: int) -> dict[str, dict[str, Any]]:
    """Figures of each engine: tokens per step, and seconds over those without drafts."""
    seconds = dict.fromkeys(engines, 0.0)
    before = {name: _counts(llm) for name, llm in engines.items()}
    for chat in some.chats:  # from here on its prompt is in the prefix cache
        for llm in engines.values():
            _answer(llm, chat, some.max_tokens)
    after = {name: _counts(llm) for name, llm in engines.items()}
    for chat in some.chats:
        times: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(repeats):
            for name, llm in engines.items():  # in turn
                times[name].append(_answer(llm, chat, some.max_tokens))
        for name in engines:
            seconds[name] += min(times[name])
    found = {}
    for name in engines:
        tokens, steps, drafted, accepted = (after[name] - before[name]).tolist()
        num_prompts = len(some.chats)  # each is computed in one step, which gives a token
        found[name] = {
            "tokens_per_step": (tokens - num_prompts) / (steps - num_prompts),
            "accepted_share": accepted / drafted if drafted else 0.0,
            "seconds": seconds[name],
            "seconds_ratio": seconds[name] / seconds["none"],
        }
    return found


def _answer(llm: LLM, chat: list[dict[str, str]], max_tokens: int) -> float:
    begin = time.perf_counter()
    llm.chat(chat, SamplingParams(temperature=0, max_tokens=max_tokens), use_tqdm=False)
    return time.perf_counter() - begin


# -- steps -----------------------------------------------------------------------------------------


class _Rows:
    """A proposer of ``num_rows - 1`` drafts, right or wrong."""

    num_rows = 1

    def propose(self, seqs: list[Sequence]) -> list[list[int]]:
        return [[7] * (self.num_rows - 1) for _ in seqs]


def _step_costs(report: Report, plain: LLM) -> dict[str, float]:
    """Milliseconds of a step by rows of a sequence; beside them the roofline's ratio."""
    rows = _Rows()
    llm = _engine({"model": rows, "num_speculative_tokens": max(NUM_ROWS) - 1})
    config = llm.llm_engine.model_config
    peaks = machine.measure(torch.device("cpu"), config.dtype)
    report.ceiling(peaks, "measured here")
    shape = shape_of(config, config.dtype.itemsize)
    hardware = machine.as_hardware(peaks)
    found = {}
    lines = []
    for batch, context in BATCHES:
        seconds = {}
        for rows.num_rows in NUM_ROWS:
            engine = plain if rows.num_rows == 1 else llm
            seconds[rows.num_rows] = _step_seconds(engine, batch, context)
        line: list[Any] = [f"{batch} x {context:,}", 1e3 * seconds[1]]
        for n in NUM_ROWS[1:]:
            least = [
                hardware.least_seconds(shape.step_work([(context, q)] * batch)) for q in (1, n)
            ]
            ratio = found[f"q{n}_batch{batch}_context{context}"] = seconds[n] / seconds[1]
            line.append(f"{ratio:.2f} ({least[1] / least[0]:.2f})")
        lines.append(line)
    report.table(
        "a step of q rows a sequence over one of a row, and the same of the roofline, which reads "
        "weights, K and V once",
        ("sequences x tokens", "q = 1, ms", *(f"q = {n}" for n in NUM_ROWS[1:])),
        lines,
    )
    return found


def _step_seconds(llm: LLM, batch: int, context: int) -> float:
    """Seconds of a decode of this batch. The quickest quarter of steps counts."""
    engine = llm.llm_engine
    times = []
    vocab_size = engine.model_config.vocab_size
    params = SamplingParams(temperature=0, max_tokens=10 * STEPS, ignore_eos=True)
    for i in range(batch):
        ids = [20 + (7 * i + 13 * j) % (vocab_size - 20) for j in range(context)]
        engine.add_request(f"{i}", {"prompt_token_ids": ids}, params)
    while engine.scheduler.waiting or any(
        seq.num_output_tokens == 0 for seq in engine.scheduler.running
    ):
        engine.step()
    for _ in range(STEPS):
        begin = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - begin)
    engine.abort_request([f"{i}" for i in range(batch)])
    return sorted(times)[STEPS // 4]


def _proposer_us(low: int, high: int, config: dict[str, Any]) -> float:
    """Microseconds of the n-gram proposer when a text of 4,096 tokens has grown by one."""
    proposer = NgramProposer(low, high, config["num_speculative_tokens"])
    token_ids = [(i * i + i // 7) % 900 for i in range(PROPOSER_TOKENS)]
    seq = make_request("0", token_ids).seqs[0]
    propose = partial(proposer.propose, [seq])
    propose()  # reads the whole text, once
    times = []
    for i in range(200):
        seq.token_ids.append(token_ids[i])
        begin = time.perf_counter()
        propose()
        times.append(time.perf_counter() - begin)
    return 1e6 * sorted(times)[len(times) // 2]
