"""``minivllm bench embed``: texts to vectors by a BERT, beside Sentence Transformers.

Both load the same directory, of random weights and made-up words. Tokenizing is part of the time.
Sentence Transformers sorts texts by length and pads batches; here a step is one ragged batch.

Then a step of a decoder that embeds, beside the same step of one that samples a token: the embedded
model, the same prompts.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer

from minivllm.entrypoints.llm import LLM
from minivllm.lab.bench.options import Repeats, Threads, count
from minivllm.lab.bench.report import Report
from minivllm.sampling_params import SamplingParams

LENGTHS = ((5, 200), (5, 20))  # tokens of a text, the shortest and the longest
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCAB_SIZE = 30522  # BERT's
PEER = "sentence-transformers"

Embedder = Callable[[list[str]], np.ndarray]  # texts to float32 [num_texts, hidden_size]


def bench_embed(
    num_texts: Annotated[int, count("Texts of each mixture of lengths.")] = 256,
    num_layers: Annotated[int, count("Of the BERT.")] = 6,
    hidden_size: Annotated[int, count("Of the BERT; heads have 32 numbers.", 32)] = 384,
    peer: Annotated[
        bool, typer.Option("--peer/--no-peer", help=f"Measure {PEER}, too, if it is installed.")
    ] = True,
    repeats: Repeats = 7,
    threads: Threads = None,
) -> None:
    """Measure and print. Both run in turn; of the runs the medians count."""
    with TemporaryDirectory(prefix="minivllm-bench-") as name:
        directory = Path(name)
        make_directory(directory, num_layers, hidden_size)
        ways = {"minivllm": _ours(directory)}
        if peer and find_spec("sentence_transformers") is not None:
            ways[PEER] = _theirs(directory)
        report = Report(
            "embed",
            {
                "model": f"BERT, {num_layers} layers of {hidden_size}",
                "num_texts": num_texts,
                "threads": threads,
                "clock": f"wall time, medians of {repeats} runs in turn after one that warms up",
            },
        )
        results: dict[str, Any] = {}
        for shortest, longest in LENGTHS:
            texts = make_texts(num_texts, shortest, longest)
            results[f"{shortest} to {longest}"] = _measure(ways, texts, repeats)
    rows = [
        (lengths, way, 1e3 * found["seconds"][way], num_texts / found["seconds"][way],
         found["ratio"] if way != "minivllm" else "")
        for lengths, found in results.items()
        for way in ways
    ]  # fmt: skip
    report.table("medians", ("tokens", "by", "ms", "texts/s", "time over ours"), rows)
    results["decoder"] = decoder = _measure_decoder(num_texts, repeats)
    report.table("steps of a decoder", ("that", "ms"), list(decoder["ms"].items()))
    report.note(f"embedding takes {decoder['ratio']:.3f} of the time of a token")
    report.finish(results, {"peer": PEER} if len(ways) > 1 else None)


def _measure_decoder(num_prompts: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of prompts that are embedded, and of the same that get a token; their ratio."""
    rng = Random(1)
    limits = {"enable_prefix_caching": False, "max_model_len": 512}
    prompts = [
        [rng.randrange(5, 1000) for _ in range(rng.randint(5, 60))] for _ in range(num_prompts)
    ]
    one_token = SamplingParams(temperature=0, max_tokens=1)
    generator, embedder = LLM(**limits), LLM(**limits, task="embed")
    ways: dict[str, Callable[[], Any]] = {
        "samples": lambda: generator.generate(prompts, one_token, use_tqdm=False),
        "embeds": lambda: embedder.encode(prompts, use_tqdm=False),
    }
    runs: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(repeats + 1):
        for way, run in ways.items():
            begin = time.perf_counter()
            run()
            if number:  # the first one warms up
                runs[way].append(1e3 * (time.perf_counter() - begin))
    pairs = zip(runs["embeds"], runs["samples"], strict=True)
    ratio = statistics.median(embeds / samples for embeds, samples in pairs)
    return {"ms": {way: statistics.median(times) for way, times in runs.items()}, "ratio": ratio}


def _measure(ways: dict[str, Embedder], texts: list[str], repeats: int) -> dict[str, Any]:
    """Seconds of each way, the ratio of pairs of runs, and how far their vectors differ."""
    vectors = [embed(texts) for embed in ways.values()]
    runs: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, embed in ways.items():
            begin = time.perf_counter()
            embed(texts)
            runs[way].append(time.perf_counter() - begin)
    found: dict[str, Any] = {"seconds": {way: statistics.median(s) for way, s in runs.items()}}
    if PEER in runs:
        pairs = zip(runs["minivllm"], runs[PEER], strict=True)
        found["ratio"] = statistics.median(theirs / ours for ours, theirs in pairs)
        found["difference"] = float(np.abs(vectors[0] - vectors[1]).max())
    return found


def _ours(directory: Path) -> Embedder:
    llm = LLM(str(directory))

    def embed(texts: list[str]) -> np.ndarray:
        outputs = llm.embed(texts, use_tqdm=False)
        return np.array([output.outputs.embedding for output in outputs], np.float32)

    return embed


def _theirs(directory: Path) -> Embedder:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(directory), device="cpu", local_files_only=True)
    return lambda texts: model.encode(texts, show_progress_bar=False)


def make_texts(num_texts: int, shortest: int, longest: int, seed: int = 0) -> list[str]:
    """Make texts of random words; their numbers of tokens include [CLS] and [SEP]."""
    rng = Random(seed)
    texts = []
    for _ in range(num_texts):
        words = rng.choices(range(VOCAB_SIZE - len(SPECIAL)), k=rng.randint(shortest, longest) - 2)
        texts.append(" ".join(f"w{word}" for word in words))
    return texts


def make_directory(directory: Path, num_layers: int, hidden_size: int) -> None:
    """Write a BERT of random weights as a directory of Sentence Transformers, CLS pooling."""
    from transformers import BertConfig, BertModel, BertTokenizer

    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,
        intermediate_size=4 * hidden_size,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(directory)
    words = [*SPECIAL, *(f"w{word}" for word in range(VOCAB_SIZE - len(SPECIAL)))]
    tokenizer = BertTokenizer(
        vocab={word: index for index, word in enumerate(words)}, model_max_length=512
    )
    tokenizer.save_pretrained(directory)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    pooling = {"word_embedding_dimension": hidden_size, "pooling_mode_cls_token": True}
    files = {"modules.json": modules, "1_Pooling/config.json": pooling}
    for file, content in files.items():
        (directory / file).parent.mkdir(exist_ok=True)
        (directory / file).write_text(json.dumps(content), encoding="utf-8")
