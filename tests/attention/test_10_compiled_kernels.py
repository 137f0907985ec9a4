"""The kernels, compiled for GPUs that need not be there: no spills, wide loads, tensor cores."""

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
# Bytes that a program may have by compute capability (CUDA C Programming Guide, "Technical
# Specifications per Compute Capability"): a T4, an A100, an RTX 3090, an L4, an H200, a B200
CARDS = {kind: kib * 1024 for kind, kib in
         {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227}.items()}  # fmt: skip


def compile_for(which, folder, timeout=300):
    """Rows of ``compile_kernels.py``, run where Triton compiles."""
    if not ASSEMBLER.exists():
        pytest.skip("this Triton has no assembler for NVIDIA GPUs")
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(folder)
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, str(Path(__file__).parents[1] / "compile_kernels.py"), which]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=timeout)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [row | {"kernel": row["kernel"].strip("_").removesuffix("_kernel")} for row in rows]


def check_limits(rows):
    """Each kernel has what it needs on its card, and on a T4 there is no bfloat16."""
    for row in rows:
        assert row["spilled"] == 0, row
        assert row["shared_memory"] <= CARDS[row["arch"]], row
        assert row["arch"] >= 80 or not row["bfloat16"], row


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """By name and type of numbers, what is to be known of each kernel compiled for an H200."""
    rows = compile_for("hopper", tmp_path_factory.mktemp("triton"))
    check_limits(rows)
    found = {}
    for row in rows:
        if row["case"].startswith("heads of"):  # not a graph's; of the varlen kernels the first
            found.setdefault((row["kernel"], row["dtype"]), row)
    return found


def test_all_kernels_are_compiled(kernels):
    assert len(kernels) == 9 * 3


def test_the_smallest_cards_run_the_widest_rows(tmp_path):
    rows = compile_for("sample", tmp_path)
    assert {row["arch"] for row in rows} == {75, 86}
    assert {"varlen", "paged_decode", "split_decode"} <= {row["kernel"] for row in rows}
    check_limits(rows)


@pytest.mark.matrix
@pytest.mark.timeout(7200)
def test_every_kernel_on_every_card(tmp_path):
    """All dtypes and all sets of constants: what engines may launch on a card."""
    rows = compile_for("matrix", tmp_path, timeout=7000)
    assert {row["arch"] for row in rows} == set(CARDS)
    assert len({row["kernel"] for row in rows}) == 9
    check_limits(rows)


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
