"""The kernels, compiled for an H200 (sm_90): no spilled registers, wide loads, tensor cores."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

triton = pytest.importorskip("triton", reason="Triton is available for Linux only")
ASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
SHARED_MEMORY = 227 * 1024  # of a processor of an H200


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """By name and type of numbers, what is to be known of each compiled kernel."""
    if not ASSEMBLER.exists():
        pytest.skip("this Triton has no assembler for NVIDIA GPUs")
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, str(Path(__file__).parents[1] / "compile_kernels.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {(row["kernel"].strip("_").removesuffix("_kernel"), row["dtype"]): row for row in rows}


def test_all_compile_within_what_a_processor_has(kernels):
    assert len(kernels) == 8 * 3
    for name, kernel in kernels.items():
        assert kernel["spilled"] == 0, name
        assert kernel["shared_memory"] < SHARED_MEMORY, name


@pytest.mark.parametrize("name", ["paged_decode", "split_decode", "varlen"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_attention_loads_wide_and_ahead(kernels, name, dtype):
    """K and V come 16 bytes at a time, and later tiles while one is computed with."""
    kernel = kernels[name, dtype]
    assert kernel["asynchronous_loads_of_16_bytes"] >= 8
    assert kernel["loads_left_under_way"] >= 3


def test_products_are_made_on_tensor_cores(kernels):
    for dtype in ("bfloat16", "float16"):
        assert kernels["varlen", dtype]["wgmma"] > 0
        assert kernels["paged_decode", dtype]["mma"] > 0
        assert kernels["split_decode", dtype]["mma"] > 0
        assert kernels["lora_shrink", dtype]["mma"] > 0
        assert kernels["w4a16", dtype]["wgmma"] > 0


def test_decode_leaves_room_for_five_programs_at_once(kernels):
    for name in ("paged_decode", "split_decode"):
        kernel = kernels[name, "bfloat16"]
        assert 5 * (kernel["shared_memory"] + 1024) <= SHARED_MEMORY
        assert 5 * 128 * kernel["registers"] <= 65536


@pytest.mark.parametrize("name", ["lora_shrink", "w4a16"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_linear_layers_load_wide_and_ahead(kernels, name, dtype):
    kernel = kernels[name, dtype]
    assert kernel["asynchronous_loads_of_16_bytes"] >= 6
    assert kernel["loads_left_under_way"] >= 2


def test_slots_are_written_with_wide_loads(kernels):
    assert kernels["write_slots", "bfloat16"]["loads_of_16_bytes"] >= 2
