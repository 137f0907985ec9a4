"""vLLM's own names, as listed from its wheels, and what of a text is held against them.

The list has files, classes, functions, fields and variables of two versions: 0.32.0, of which our
documents speak, and 0.6.6, the last of the V0 engine, of which they speak where they say so.
"""

import ast
import gzip
import json
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEW, OLD = "0.32.0", "0.6.6"
FILES = json.loads(gzip.decompress((ROOT / "tests/data/vllm_names.json.gz").read_bytes()))

# What the wheels' Python files do not have, and whose it is.
ELSEWHERE = {
    # CUDA sources of 0.6.6: the wheel has them compiled, as paged_attention_v1_kernel and so on
    "csrc/attention/attention_kernels.cuh": OLD,
    "csrc/cache_kernels.cu": OLD,
    "paged_attention_kernel": OLD,
    "paged_attention_v2_reduce_kernel": OLD,
    # CUDA sources of 0.32
    "merge_attn_states.cu": NEW,
    # arguments and log lines of 0.32, which the list of names leaves out
    "num_splits": NEW,
    # the method by its authors' name
    "FlashDecoding": NEW,
    # SGLang's
    "RadixCache": NEW,
    # PyTorch's
    "torch.Generator": NEW,
    "torch.compile": NEW,
    "LD_PRELOAD": NEW,
}

# Of the model runner that 0.32 no longer runs where Triton is: who names it names its successor.
SUPERSEDED = {
    "vllm/v1/worker/gpu_model_runner.py": "vllm/v1/worker/gpu/model_runner.py",
    "vllm/v1/worker/gpu_input_batch.py": "vllm/v1/worker/gpu/input_batch.py",
    "vllm/v1/worker/block_table.py": "vllm/v1/worker/gpu/block_table.py",
    "vllm/v1/sample/sampler.py": "vllm/v1/worker/gpu/sample/sampler.py",
    "vllm/v1/sample/ops/bad_words.py": "vllm/v1/worker/gpu/sample/bad_words.py",
}

PATH = re.compile(r"(?<![\w/])(?:vllm|csrc)/[\w/]*(?:\.(?:pyi?|cuh?)\b)?")
BARE_FILE = re.compile(r"(?<![\w/.])\w+\.(?:py|cuh?)\b")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
BOUND = re.compile(  # `Name` and `Other` in `path`, `Name` (`path`)
    r"((?:`[\w.]+`(?:, | and |, and | or )?)+)(?: is| are| stands?)?(?: in| \(|:) ?`"
    + PATH.pattern.replace(r"(?<![\w/])", "(", 1)
    + ")`"
)


@cache
def known(version: str) -> frozenset[str]:
    """Every name of a version: ``name``, ``Class.member``; files by their last part, too."""
    found = set()
    for path, classes in FILES[version].items():
        found |= {path, path.rpartition("/")[2], path.rpartition("/")[2].removesuffix(".py")}
        found |= names_in(classes)
    return frozenset(found)


def names_in(classes: dict[str, list[str]]) -> set[str]:
    found = set()
    for name, members in classes.items():
        found |= {name, *members, *(f"{name}.{member}" for member in members if name)}
    return found - {""}


def has_path(version: str, path: str) -> bool:
    """Is it a file of that version, or a folder that has files?"""
    if path.endswith(".py"):
        return path in FILES[version]
    return any(file.startswith(path.rstrip("/") + "/") for file in FILES[version])


@cache
def ours() -> frozenset[str]:
    """Every name that minivllm defines: classes, functions, arguments, fields, modules."""
    found = set()
    for file in (ROOT / "minivllm").rglob("*.py"):
        found |= {file.stem, file.name}
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                inner = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
                inner |= {
                    n.target.id
                    for n in node.body
                    if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
                }
                found |= {node.name, *(f"{node.name}.{name}" for name in inner)}
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.add(node.name)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return frozenset(found)


def versions(paragraph: str) -> list[str]:
    """The versions that a paragraph speaks of; the old one only if it says so."""
    return [NEW, OLD] if re.search(r"0\.6\.\d|\bV0\b", paragraph) else [NEW]


def wrong_paths(paragraph: str) -> list[str]:
    """Files and folders of vLLM that no version has which the paragraph speaks of."""
    told = versions(paragraph)
    wrong = []
    for path in PATH.findall(paragraph):
        if path in ELSEWHERE:
            if ELSEWHERE[path] not in told:
                wrong.append(f"{path} is of {ELSEWHERE[path]}: say so")
        elif not any(has_path(version, path) for version in told):
            of_old = OLD not in told and has_path(OLD, path)
            wrong.append(f"{path} is of {OLD}: say so" if of_old else f"there is no {path}")
        elif path in SUPERSEDED and SUPERSEDED[path] not in paragraph:
            wrong.append(f"{path} is the old runner's; {SUPERSEDED[path]} runs now")
    return wrong


def wrong_names(paragraph: str, names: list[str]) -> list[str]:
    """Names of these that neither vLLM (as of the versions named) nor minivllm has."""
    told = versions(paragraph)
    wrong = []
    for name in names:
        if name in ours() or any(name in known(version) for version in told):
            continue
        if ELSEWHERE.get(name) in told:
            continue
        if ELSEWHERE.get(name) == OLD or name in known(OLD):
            wrong.append(f"{name} is of {OLD}: say so")
        else:
            wrong.append(f"there is no {name}")
    return wrong


def wrong_places(paragraph: str) -> list[str]:
    """Names that are said to be in a file which has no such name."""
    told = versions(paragraph)
    wrong = []
    for names, path in BOUND.findall(paragraph):
        if not path.endswith(".py"):
            continue
        there = set().union(*(names_in(FILES[v].get(path, {})) for v in told))
        for name in re.findall(r"`([\w.]+)`", names):
            owner, _, last = name.rpartition(".")
            inherited = owner and owner not in there and last in there  # LLM.beam_search, of a base
            if there and not name.endswith(".py") and name not in there and not inherited:
                wrong.append(f"{name} is not in {path}")
    return wrong


def quoted(paragraph: str) -> list[str]:
    """Names in backticks, without their arguments; no flags, no numbers, no sentences."""
    found = []
    for text in re.findall(r"`+([^`\n]+)`+", paragraph):
        text = re.sub(r"\(.*\)$|=.*$", "", text.strip())
        if (NAME.fullmatch(text) and len(text) > 2) or BARE_FILE.fullmatch(text):
            found.append(text)
    return found


def plain(group: str) -> list[str]:
    """Names in a docstring's bracket, where backticks are often left out."""
    text = PATH.sub(" ", group)
    words = re.findall(r"[A-Za-z_][\w.]*\w", text)
    return [w for w in words if re.search(r"[a-z]_[a-z]|[a-z][A-Z]\w*[a-z]|\.py$|[A-Z]+_[A-Z]", w)]
