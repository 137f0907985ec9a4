"""Compile what the kernels launch, for an H200, on a machine without one.

Run by test_10_compiled_kernels.py in a process of its own, where Triton compiles instead of
interpreting. Tensors are on torch's "meta" device: they have shapes and no content, so code that
looks into one fails. Prints a line of JSON for every kernel.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from minivllm.attention.kernels.cache import write_slots
from minivllm.attention.kernels.decode import paged_decode
from minivllm.attention.kernels.split_kv import split_decode
from minivllm.attention.kernels.varlen import varlen_attention
from minivllm.attention.kv_cache import KVCache
from minivllm.attention.paged_triton import PagedTriton
from minivllm.engine.arg_utils import EngineArgs
from minivllm.lora.kernels import lora_expand, lora_shrink
from minivllm.models.hub import model_directory
from minivllm.models.loader import load_config
from minivllm.models.registry import get_model_class
from minivllm.quantization.kernels import w4a16
from minivllm.worker.model_runner import ModelRunner

META = torch.device("meta")
BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class Hopper:
    """In place of Triton's driver: a GPU that is there to be compiled for."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


def compile_only(compiled):
    """From now on a launch compiles its kernel, notes it in ``compiled`` and starts nothing."""
    driver.set_active(Hopper())
    run = JITFunction.run

    def compile_and_note(self, *args, grid, warmup, **kwargs):
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        compiled[self.__name__] = kernel
        return kernel

    JITFunction.run = compile_and_note


def facts(kernel):
    """Registers and memory of a kernel, and the instructions that load and multiply."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [BINARIES / "cuobjdump", "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ptx = kernel.asm["ptx"]
    return {
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "spilled": int(re.search(r"STACK:(\d+)", usage)[1]),
        "shared_memory": kernel.metadata.shared,
        "loads_of_16_bytes": len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)),
        "asynchronous_loads_of_16_bytes": len(re.findall(r"cp\.async\.c[ga]\S* .*0x10,", ptx)),
        "loads_left_under_way": max(map(int, re.findall(r"cp\.async\.wait_group\s+(\d+)", ptx)),
                                    default=0),
        "mma": len(re.findall(r"[^g]mma\.sync", ptx)),
        "wgmma": len(re.findall(r"wgmma\.mma_async", ptx)),
    }  # fmt: skip


def launch_all(dtype, head_dim, block_size, num_heads=32, num_kv_heads=8, num_seqs=64):
    """Every kernel once, for a batch of this shape."""

    def empty(*shape, dtype=dtype):
        return torch.empty(shape, dtype=dtype, device=META)

    caches = [empty(1000, block_size, num_kv_heads, head_dim) for _ in range(2)]
    lengths = empty(num_seqs, dtype=torch.int32)
    table = empty(num_seqs, 77, dtype=torch.int32)
    query = empty(num_seqs, num_heads, head_dim)
    paged_decode(query, *caches, table, lengths, 0.1)
    split_decode(query, *caches, table, lengths, 0.1, num_splits=5)
    prompt = empty(2048, num_heads, head_dim)
    starts = empty(num_seqs + 1, dtype=torch.int32)
    varlen_attention(prompt, *caches, table, starts, lengths, 1985, 0.1)
    fused = empty(2048, (num_heads + 2 * num_kv_heads) * head_dim)
    key = fused[:, : num_kv_heads * head_dim].unflatten(1, (num_kv_heads, head_dim))
    write_slots(key, key, *caches, empty(2048, dtype=torch.int64))
    launch_linear(dtype, empty)


def launch_linear(dtype, empty):
    """The kernels of adapters and of weights of 4 bits, for a projection of a small model."""
    x, width, max_rank = empty(500, 896), 2 * 4864, 16
    metadata = SimpleNamespace(
        rows=empty(500, dtype=torch.int64), tiles=empty(40, 3, dtype=torch.int32)
    )
    shrunk = lora_shrink(x, empty(4, 896, 2 * max_rank), metadata)
    b, parts = empty(4, max_rank, width), (width // 2, width // 2)
    lora_expand(empty(500, width), shrunk, b, parts, metadata)
    words, groups = empty(896 // 8, width, dtype=torch.int32), (896 // 128, width)
    scales, zeros = empty(*groups, dtype=torch.float16), empty(*groups, dtype=torch.int8)
    w4a16(x, words, scales, zeros, empty(width))


def record_decode_step():
    """The embedded model's decode step as ``CUDAGraphRunner`` would record it."""
    config = load_config(model_directory(EngineArgs()))
    with META:
        model = get_model_class(config.architecture)(config).to(META, torch.bfloat16)
    storage = KVCache(
        config.num_layers, 9, 16, config.num_kv_heads, config.head_dim, torch.bfloat16, META
    )
    runner = ModelRunner(model, storage, storage, 16, PagedTriton())
    runner.capture_decodes([4], 64, GraphRecorder())


class GraphRecorder:
    def capture(self, function):
        function()
        return function


if __name__ == "__main__":
    compiled = {}
    compile_only(compiled)
    record_decode_step()
    compiled.clear()
    for dtype, head_dim, block_size in (("bfloat16", 128, 16), ("float16", 80, 1),
                                        ("float32", 256, 16)):  # fmt: skip
        launch_all(getattr(torch, dtype), head_dim, block_size)
        for name, kernel in compiled.items():
            print(json.dumps({"kernel": name, "dtype": dtype, **facts(kernel)}), flush=True)
