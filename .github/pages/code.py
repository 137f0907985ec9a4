"""The code page: the README's list for an evening, each file with its source below it."""

import re
from pathlib import Path

from pages.notebook import highlighted

ROOT = Path(__file__).parents[2]
TITLE = "## Read it in an evening\n"
FILE = re.compile(r"^\d+\. \[`(.+?)`\]\((minivllm/.+?)\): (.+)$", re.MULTILINE)


def code_page() -> str:
    """Markdown with the sources as HTML."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.split(TITLE, 1)[1].split("\n## ", 1)[0]
    files = FILE.findall(section)
    parts = [
        "# Read the code",
        "From a request to a token, in this order: what runs when a model server answers, without "
        "what makes it fast. Names are vLLM's; the [map to vLLM](guide/vllm-map.md) has the "
        "counterpart of each file.",
        *(listing(name, path, what) for name, path, what in files),
        "The pieces in which you write five of these yourself are in "
        "[Build your own engine](guide/build_your_own.md); how the rest of the package is "
        "arranged, and why, is in [the house](guide/house.md).",
    ]
    return "\n\n".join(parts)


def listing(name: str, path: str, what: str) -> str:
    source = (ROOT / path).read_text(encoding="utf-8")
    num_lines = len(source.splitlines())
    # One line: Markdown takes what is indented after an empty line for something else.
    code = highlighted(source).replace("\n", "&#10;")
    sentence = what[0].upper() + what[1:] + ("" if what.endswith("?") else ".")
    return (
        f"## {name}\n\n{sentence}\n\n"
        f'<details class="source"><summary>{num_lines} lines</summary>{code}</details>'
    )
