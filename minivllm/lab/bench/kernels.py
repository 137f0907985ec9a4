"""``minivllm bench kernels``: one layer's attention, by backend, beside bandwidth and matrix rate.

A decode reads every context's K and V once for little arithmetic, so bytes per second are what
counts; a prefill computes a triangle of scores, so operations per second are. Beside them torch's
own attention, on K and V in one piece: on a GPU in 16 bits its flash kernel, else what it chooses.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch.nn.attention import SDPBackend, sdpa_kernel

from minivllm.attention.kv_cache import KVCache
from minivllm.attention.metadata import AttentionMetadata
from minivllm.attention.selector import make_backend
from minivllm.config import ATTENTION_BACKENDS
from minivllm.kv.block_table import slots_of
from minivllm.lab.bench import machine
from minivllm.lab.bench.models import DTYPES
from minivllm.lab.bench.options import Dtype, Threads, count
from minivllm.lab.bench.report import Report
from minivllm.utils.math_utils import cdiv
from minivllm.utils.validation import check
from minivllm.worker.cuda_graph_runner import CUDAGraphRecorder

Figures = dict[str, dict[str, float]]  # by case


@dataclass(frozen=True)
class Shape:
    """Heads and numbers of one attention layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Case:
    """Sequences of ``context`` tokens, of which the newest ``query_len`` are asked for."""

    name: str
    batch: int
    context: int
    query_len: int

    def bytes_read(self, shape: Shape) -> int:
        """K and V of all contexts, once."""
        numbers = 2 * self.batch * self.context * shape.num_kv_heads * shape.head_dim
        return numbers * shape.dtype.itemsize

    def flops(self, shape: Shape) -> int:
        """Scores and weighted sums of the pairs that causality allows."""
        before = self.context - self.query_len
        pairs = self.query_len * before + self.query_len * (self.query_len + 1) // 2
        return 4 * self.batch * pairs * shape.num_heads * shape.head_dim


def bench_kernels(
    backends: Annotated[
        list[str],
        typer.Option("--backend", help="By name, repeatable; none: all that can run here."),
    ] = [],  # noqa: B006 (typer copies it)
    batch: Annotated[int, count("Sequences that decode.")] = 16,
    context: Annotated[int, count("Tokens of each.")] = 1024,
    alone: Annotated[int, count("Tokens of a sequence that decodes alone.")] = 16384,
    prefill: Annotated[int, count("Tokens of a new prompt.")] = 512,
    num_heads: Annotated[int, count("Of queries.")] = 32,
    num_kv_heads: Annotated[int, count("Of keys and values.")] = 8,
    head_dim: Annotated[int, count("Numbers per head.")] = 128,
    block_size: Annotated[
        int, count("Positions per block; those of a sequence are scattered over the pool.")
    ] = 16,
    dtype: Dtype = "float32",
    threads: Threads = None,
) -> None:
    """Measure and print, for every backend that can run here."""
    known = [name for name in ATTENTION_BACKENDS if name != "auto"]
    for name in backends:
        check(name in known, "backends", name, f"one of {', '.join(known)}")
    check(dtype in DTYPES, "dtype", dtype, f"one of {', '.join(DTYPES)}")
    ok = num_heads % num_kv_heads == 0
    check(ok, "num_heads", num_heads, f"a multiple of num_kv_heads={num_kv_heads}")
    device = machine.default_device()
    shape = Shape(
        num_heads,
        num_kv_heads,
        head_dim,
        block_size=block_size,
        dtype=getattr(torch, dtype),
        device=device,
    )
    cases = [
        Case("decode", batch, context, 1),
        Case("decode alone", 1, alone, 1),
        Case("prefill", 1, prefill, prefill),
    ]
    report = Report(
        "kernels",
        {
            "cases": ", ".join(f"{c.name}: {c.batch} x {c.context} tokens" for c in cases),
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "block_size": block_size,
            "dtype": dtype,
            "threads": threads,
            "clock": "the best of several calls, see machine.best_seconds",
        },
    )
    peaks = machine.measure(device, shape.dtype)
    report.ceiling(peaks, "a sum, a copy and a square matrix product, measured here")
    figures: dict[str, Figures] = {}
    for name in backends or known:
        try:
            backend = make_backend(name, device)
        except ValueError as error:
            report.note(f"left out: {error}")
            continue
        figures[name] = {
            case.name: _figures(case, shape, peaks, run=_paged(backend, case, shape))
            for case in cases
        }
    dense = {case.name: _figures(case, shape, peaks, run=_dense(case, shape)) for case in cases}
    _print_results(report, figures, dense)


def _print_results(report: Report, figures: dict[str, Figures], dense: Figures) -> None:
    """Figures by kernel and case, and torch's seconds relative to each."""
    head = ("kernel", "case", "ms", "GB/s", "GFLOP/s", "of bandwidth", "of matrix rate")
    report.table(
        "one layer's attention",
        head,
        [
            (kernel, case, 1e3 * f["seconds"], f["gb_per_s"], f["gflop_per_s"],
             f"{f['share_of_bandwidth']:.0%}", f"{f['share_of_flops']:.0%}")
            for kernel, by_case in (figures | {"dense SDPA": dense}).items()
            for case, f in by_case.items()
        ],
    )  # fmt: skip
    report.note(
        "Dense SDPA is torch's own, on K and V in one piece. More than 100 % of the bandwidth "
        "means that K and V came from a cache."
    )
    ratios = {
        kernel: {case: dense[case]["seconds"] / f["seconds"] for case, f in by_case.items()}
        for kernel, by_case in figures.items()
    }
    report.finish(figures, {"peer": "dense SDPA", **dense, "ratio": ratios})


def _figures(case: Case, shape: Shape, peaks: dict[str, float], run) -> dict[str, float]:
    seconds = machine.best_seconds(run, shape.device)
    gb, gflop = case.bytes_read(shape) / seconds / 1e9, case.flops(shape) / seconds / 1e9
    return {
        "seconds": seconds,
        "gb_per_s": gb,
        "gflop_per_s": gflop,
        "share_of_bandwidth": gb / peaks["bandwidth_gb_per_s"],
        "share_of_flops": gflop / peaks["gflop_per_s"],
    }


def _paged(backend, case: Case, shape: Shape):
    """A call of the backend's ``attend`` on blocks in random places."""
    width = cdiv(case.context, shape.block_size)
    generator = torch.Generator().manual_seed(0)
    order = (1 + torch.randperm(case.batch * width, generator=generator)).tolist()
    tables = [order[i * width : (i + 1) * width] for i in range(case.batch)]
    storage = KVCache(
        num_layers=1,
        num_blocks=case.batch * width + 1,
        block_size=shape.block_size,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        device=shape.device,
    )
    storage.data.normal_()
    first = case.context - case.query_len
    slots = [
        s for t in tables for s in slots_of(t, first, case.context, block_size=shape.block_size)
    ]
    metadata = AttentionMetadata.build(
        [case.query_len] * case.batch,
        [case.context] * case.batch,
        tables,
        slot_mapping=slots,
        device=shape.device,
    )
    query = _query(case.batch * case.query_len, shape)
    key_cache, value_cache = storage.layer(0)
    scale = shape.head_dim**-0.5

    def run() -> torch.Tensor:
        return backend.attend(query, key_cache, value_cache, metadata, scale)

    if shape.device.type == "cuda" and backend.supports_cuda_graphs:
        return CUDAGraphRecorder().capture(run)  # as in the engine: Python is not in the way
    return run


def _dense(case: Case, shape: Shape):
    """torch's own attention, each sequence's K and V in one piece."""
    kv_shape = (case.batch, shape.num_kv_heads, case.context, shape.head_dim)
    keys, values = (torch.randn(kv_shape, device=shape.device).to(shape.dtype) for _ in range(2))
    query = _query(case.batch * case.query_len, shape)
    query = query.view(case.batch, case.query_len, shape.num_heads, shape.head_dim).transpose(1, 2)
    causal = case.query_len > 1
    flash = shape.device.type == "cuda" and shape.dtype != torch.float32

    def run() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if flash else nullcontext():
            return F.scaled_dot_product_attention(
                query, keys, values, is_causal=causal, enable_gqa=True
            )

    return run


def _query(num_tokens: int, shape: Shape) -> torch.Tensor:
    size = (num_tokens, shape.num_heads, shape.head_dim)
    return torch.randn(size, device=shape.device).to(shape.dtype)
