"""Compile what the kernels launch, for GPUs that need not be there.

Run by test_10_compiled_kernels.py in a process of its own, where Triton compiles instead of
interpreting: ``python tests/compile_kernels.py hopper|sample|matrix [CAPABILITY ...]``. Tensors are
on torch's "meta" device: they have shapes and no content, so code that looks into one fails. Prints
a line of JSON for every kernel and every set of constants.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from cuda_stand_ins import CallsAgain, CompilerOnly
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from minivllm.attention.kernels import launch
from minivllm.attention.kernels.cache import copy_blocks, write_slots
from minivllm.attention.kernels.decode import paged_decode
from minivllm.attention.kernels.launch import Card
from minivllm.attention.kernels.split_kv import MOST_SPLITS, split_decode
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

# What one program may have, by compute capability (CUDA C Programming Guide, "Technical
# Specifications per Compute Capability"): a T4, an A100, an RTX 3090, an L4, an H200, a B200.
CARDS = {
    75: Card((7, 5), 64 * 1024),
    80: Card((8, 0), 163 * 1024),
    86: Card((8, 6), 99 * 1024),
    89: Card((8, 9), 99 * 1024),
    90: Card((9, 0), 227 * 1024),
    100: Card((10, 0), 227 * 1024),
}

# heads, KV heads, head size: of models that the course runs or names
ATTENTION = {
    "embedded": (4, 4, 64),
    "its draft": (4, 4, 32),
    "SmolLM2-135M": (9, 3, 64),
    "Qwen2.5-0.5B": (14, 2, 64),
    "Qwen3-0.6B": (16, 8, 128),
    "Llama-3.1-8B": (32, 8, 128),
    "a head of no power of two": (8, 8, 80),
    "all heads share one": (32, 1, 128),
    "the widest heads": (8, 4, 256),
}
# inputs, widths of the parts: of projections that have adapters or 4 bits
LINEAR = {
    "embedded, qkv": (256, (256, 256, 256)),
    "embedded, down": (512, (256,)),
    "Qwen2.5-0.5B, gate and up": (896, (4864, 4864)),
    "Qwen3-0.6B, o": (2048, (1024,)),
}


def compile_only(compiled):
    """From now on a launch compiles its kernel, notes it in ``compiled`` and starts nothing.

    Returns:
        A function that chooses the card to compile for.
    """
    target = CompilerOnly()
    driver.set_active(target)
    run = JITFunction.run

    def compile_and_note(self, *args, grid, warmup, **kwargs):
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        compiled.setdefault(self.__name__, {})[kernel.hash] = kernel
        return kernel

    JITFunction.run = compile_and_note

    def choose(arch):
        target.arch = arch
        launch.card_of = lambda device: CARDS[arch]

    return choose


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
        "bfloat16": "bf16" in ptx,
    }  # fmt: skip


def empty(*shape, dtype):
    return torch.empty(shape, dtype=dtype, device=META)


def launch_attention(dtype, shape, block_size, num_seqs=64, splits=(5,)):
    """Each attention kernel for a batch of this shape, and what moves K and V."""
    num_heads, num_kv_heads, head_dim = shape
    caches = [empty(1000, block_size, num_kv_heads, head_dim, dtype=dtype) for _ in range(2)]
    lengths = empty(num_seqs, dtype=torch.int32)
    table = empty(num_seqs, 77, dtype=torch.int32)
    query = empty(num_seqs, num_heads, head_dim, dtype=dtype)
    paged_decode(query, *caches, table, lengths, 0.1)
    for num_splits in splits:
        split_decode(query, *caches, table, lengths, 0.1, num_splits=num_splits)
    prompt = empty(2048, num_heads, head_dim, dtype=dtype)
    starts = empty(num_seqs + 1, dtype=torch.int32)
    for most_tokens in (1985, 2):  # prompts, and so few new tokens that they are like decodes
        varlen_attention(prompt, *caches, table, starts, lengths, most_tokens, 0.1)
    fused = empty(2048, (num_heads + 2 * num_kv_heads) * head_dim, dtype=dtype)
    key = fused[:, : num_kv_heads * head_dim].unflatten(1, (num_kv_heads, head_dim))
    write_slots(key, key, *caches, empty(2048, dtype=torch.int64))
    data = empty(2, 2, 1000, block_size, num_kv_heads, head_dim, dtype=dtype)
    copy_blocks(data, [1, 2], [3, 4])


def launch_adapters(dtype, inputs, parts, max_rank=16, lora_dtype=None):
    """The kernels of adapters for one projection; theirs may be another dtype."""
    lora_dtype = lora_dtype or dtype
    x, width = empty(500, inputs, dtype=dtype), sum(parts)
    metadata = SimpleNamespace(
        rows=empty(500, dtype=torch.int64), tiles=empty(40, 3, dtype=torch.int32)
    )
    shrunk = lora_shrink(x, empty(4, inputs, len(parts) * max_rank, dtype=lora_dtype), metadata)
    b = empty(4, max_rank, width, dtype=lora_dtype)
    lora_expand(empty(500, width, dtype=dtype), shrunk, b, parts, metadata)


def launch_four_bits(dtype, inputs, width, group=128, num_tokens=500, zeros=True, bias=True):
    """The kernel of weights of 4 bits for one projection."""
    words, groups = empty(inputs // 8, width, dtype=torch.int32), (inputs // group, width)
    scales = empty(*groups, dtype=torch.float16)
    w4a16(
        empty(num_tokens, inputs, dtype=dtype),
        words,
        scales,
        empty(*groups, dtype=torch.int8) if zeros else None,
        empty(width, dtype=dtype) if bias else None,
    )


def record_decode_step():
    """The embedded model's decode step as ``CUDAGraphRunner`` would record it."""
    config = load_config(model_directory(EngineArgs()))
    with META:
        model = get_model_class(config.architecture)(config).to(META, torch.bfloat16)
    storage = KVCache(
        config.num_layers, 9, 16, config.num_kv_heads, config.head_dim, torch.bfloat16, META
    )
    runner = ModelRunner(model, storage, storage, 16, PagedTriton())
    runner.capture_decodes([4], 64, CallsAgain())


def dtypes_of(arch):
    """Dtypes that engines compute in on this card: see ``check_if_supports_dtype``."""
    names = ["float16", "float32"] if arch < 80 else ["bfloat16", "float16", "float32"]
    return [getattr(torch, name) for name in names]


def hopper(choose):
    """One shape of each kind for an H200, to be looked at closely."""
    choose(90)
    record_decode_step()
    yield 90, torch.bfloat16, "a step that CUDA graphs record"
    for dtype, head_dim, block_size in ((torch.bfloat16, 128, 16), (torch.float16, 80, 1),
                                        (torch.float32, 256, 16)):  # fmt: skip
        launch_attention(dtype, (32, 8, head_dim), block_size)
        launch_adapters(dtype, *LINEAR["Qwen2.5-0.5B, gate and up"])
        launch_four_bits(dtype, 896, 2 * 4864)
        yield 90, dtype, f"heads of {head_dim}"


def sample(choose):
    """One shape each, nearest to a limit: on the smallest cards, the widest rows."""
    for arch, dtype in ((75, torch.float16), (86, torch.float32)):
        choose(arch)
        launch_attention(dtype, ATTENTION["Qwen3-0.6B"], 16)
        yield arch, dtype, "Qwen3-0.6B"


def matrix(choose, archs):
    """Every dtype and set of constants: models' shapes, and what a request or setting changes."""
    for arch in archs:
        choose(arch)
        for dtype in dtypes_of(arch):
            for name, shape in ATTENTION.items():
                launch_attention(dtype, shape, 16)
                yield arch, dtype, name
            for block_size in (1, 32):
                launch_attention(dtype, ATTENTION["Qwen3-0.6B"], block_size)
                yield arch, dtype, f"blocks of {block_size}"
            widest = [2**n for n in range(1, MOST_SPLITS.bit_length())]
            launch_attention(dtype, ATTENTION["the widest heads"], 16, splits=widest)
            yield arch, dtype, "all numbers of splits"
            for name, (inputs, parts) in LINEAR.items():
                launch_adapters(dtype, inputs, parts)
                for num_tokens in (1, 500):
                    launch_four_bits(dtype, inputs, sum(parts), num_tokens=num_tokens)
                yield arch, dtype, name
            for max_rank in (32, 64, 256, 512):
                launch_adapters(dtype, *LINEAR["embedded, qkv"], max_rank)
            for lora_dtype in dtypes_of(arch):
                launch_adapters(dtype, *LINEAR["embedded, qkv"], 16, lora_dtype)
            for group in (16, 32, 48, 64, 768):
                launch_four_bits(dtype, 768, 96, group)
            for zeros, bias in ((False, False), (False, True), (True, False)):
                launch_four_bits(dtype, 256, 768, 128, 500, zeros, bias)
            yield arch, dtype, "ranks, dtypes of adapters, groups, zeros, biases"


def main(which, *archs):
    compiled = {}
    choose = compile_only(compiled)
    if which == "matrix":
        cases = matrix(choose, [int(arch) for arch in archs] or CARDS)
    else:
        cases = {"hopper": hopper, "sample": sample}[which](choose)
    for arch, dtype, case in cases:
        for name, kernels in compiled.items():
            for kernel in kernels.values():
                row = {"kernel": name, "arch": arch, "case": case, "dtype": str(dtype)[6:]}
                print(json.dumps(row | facts(kernel)), flush=True)
        compiled.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
