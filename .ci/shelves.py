"""Lines of code on each shelf of the package: ``python .ci/shelves.py`` prints the README's table.

A line of code is one that is neither blank nor a comment nor part of a docstring. The evening's
files are a part of the engine. Of their lines those that speak of a feature that the first lesson
does not have are counted, too, by the words in ``FEATURES``; ``--features`` prints each of them.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "minivllm"

# Lines of code at most, in the order of reading. A feature that comes may raise its shelf's bound.
BOUNDS = {
    "evening": 1_430,
    "engine": 26_000,
    "server": 6_200,
    "course": 18_500,
    "lab": 18_000,
    "xray": 3_300,
    "embedded": 1_700,
}
FEATURE_LINES = 300  # of the evening's

# First folders, or files at the top; all others are the engine's.
SHELVES = {
    "course": ("course", "exercises.py"),
    "lab": ("lab", "sim.py", "viz.py"),
    "server": ("entrypoints", "cli.py", "__main__.py"),
    "xray": ("xray",),
    "embedded": ("embedded",),
}

FEATURES = {
    "drafts": r"draft|spec_decode|spec_token|propos|verif|lookahead|speculat",
    "forks and beams": r"fork|beam|sibling|child|parent_id",
    "trace": r"trace|self\.record\b",
    "adapters": r"lora|adapter",
    "swapping": r"swap|host_",
    "pooling": r"pooling|pooler|encoder",
    "grammars": r"grammar|structured|bitmask",
    "graphs": r"graph",
    "ranks": r"rank|in_flight|num_machines",
    "prompt logprobs": r"prompt_logprobs",
    "salts": r"salt",
}


def docstring_lines(tree: ast.Module) -> set[int]:
    """Numbers of the lines of a module's docstrings."""
    found: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found |= set(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    return found


def code_lines(path: Path) -> list[tuple[int, str]]:
    """Number and text of each line of code in a file."""
    text = path.read_text(encoding="utf-8")
    skipped = docstring_lines(ast.parse(text))
    return [
        (number, line)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#") and number not in skipped
    ]


def evening_files() -> list[Path]:
    """Files of the README's "Read it in an evening", in its order."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.split("## Read it in an evening")[1].split("\n## ")[0]
    names = re.findall(r"^\d+\. \[`([\w/]+\.py)`\]\(minivllm/\1\)", section, re.MULTILINE)
    return [PACKAGE / name for name in names]


def shelf_of(path: Path) -> str:
    """Name of the shelf that a file of the package belongs to."""
    first = path.relative_to(PACKAGE).parts[0]
    return next((shelf for shelf, names in SHELVES.items() if first in names), "engine")


def lines_by_shelf() -> dict[str, int]:
    """Lines of code on each shelf; the evening's are among the engine's."""
    counted = dict.fromkeys(BOUNDS, 0)
    for path in sorted(PACKAGE.rglob("*.py")):
        counted[shelf_of(path)] += len(code_lines(path))
    counted["evening"] = sum(len(code_lines(path)) for path in evening_files())
    return counted


def feature_lines() -> Iterator[tuple[Path, int, str, list[str]]]:
    """Each line of the evening that speaks of a feature: file, number, text, features."""
    for path in evening_files():
        for number, line in code_lines(path):
            code = line.partition("  #")[0]
            names = [name for name, words in FEATURES.items() if re.search(words, code, re.I)]
            if names:
                yield path, number, code, names


def table() -> str:
    """The README's table: lines of each shelf, rounded up to a hundred."""
    counted = lines_by_shelf()
    numbers = [f"{-(-lines // 100) * 100:,}" for lines in counted.values()]
    return f"| {' | '.join(counted)} |\n{'|---' * len(counted)}|\n| {' | '.join(numbers)} |"


if __name__ == "__main__":
    if "--features" in sys.argv:
        for path, number, code, names in feature_lines():
            print(f"{path.relative_to(ROOT)}:{number}: {', '.join(names)}: {code.strip()}")
    print(f"{len(list(feature_lines()))} of the evening's lines speak of a feature")
    print(lines_by_shelf())
    print(table())
