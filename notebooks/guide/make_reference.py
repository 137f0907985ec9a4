"""Write reference.md from the code's own comments: ``python notebooks/guide/make_reference.py``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path

from minivllm import envs
from minivllm.config.compat import ENGINE_DEFAULTS_ONLY, SAMPLING_DEFAULTS_ONLY
from minivllm.engine.arg_utils import EngineArgs
from minivllm.entrypoints.openai.cli_args import make_parser
from minivllm.sampling_params import BeamSearchParams, SamplingParams

HERE = Path(__file__).parent

PAGE = """\
# Reference

Made from the code by `python notebooks/guide/make_reference.py`; a test says when to run it again.
Names are vLLM's wherever it has the thing. Unknown names are refused with the nearest known one,
and a value out of range with what is allowed.

## Arguments of `LLM`

`LLM(...)` and `EngineArgs(...)` take the same names. Sizes are in tokens unless
a name says otherwise.

{engine}

Accepted at its default only, so that scripts written for vLLM say clearly what is missing:

{engine_refused}

### Where the defaults are not vLLM 0.32's

| argument | here | why |
|---|---|---|
| `model` | the embedded model | it runs here, now |
| `dtype="auto"` | as `config.json` says | float32 stays float32, to compare exactly |
| `gpu_memory_utilization` | 0.9 | as in 0.6.6 |
| KV cache on a CPU | 1 GiB (`MINIVLLM_CPU_KVCACHE_SPACE`) | a laptop has other things to do |
| `max_num_batched_tokens`, `max_num_seqs` | 4096, 256 on a CPU; 8192, 256 on a GPU; 16384, \
1024 from 70 GiB (A100: 8192, 256) | vLLM's for `LLM` |
| `block_size` | 16 | vLLM's on a GPU, and small enough to see |
| `swap_space` | 4 | as in 0.6.6; V1 has none |

## `SamplingParams`

{sampling}

Accepted at its default only:

{sampling_refused}

## `BeamSearchParams`

{beams}

## Flags of `minivllm serve`

Each argument of `LLM` is a flag of the server, too: `--max-num-seqs`, or `--max_num_seqs` if you
like. One that takes a dict takes JSON, `--speculative-config '{{"method": "ngram",
"num_speculative_tokens": 4}}'` (or `-sc`), or its keys one by one, `-sc.method ngram
-sc.num_speculative_tokens 4`; a dot leads further in, and `--x.key+ 1,2` appends to a list. Keys
typed one by one are one value, which wins over JSON of the same flag. `kv_cache_manager_cls` takes
a class, and is for programs only. `--config FILE.yaml` reads flags from a file, where a map stands
for JSON. These are the server's own:

{server}

## Environment variables

{environment}
"""


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def comments(cls: type) -> dict[str, str]:
    """What the comments beside or above a dataclass's fields say, by field.

    A comment after a blank line is a heading for several fields, and belongs to none.
    """
    found, above, blank = {}, [], False
    for line in inspect.getsource(cls).splitlines():
        field = re.match(r"    (\w+): [^#]*(?:# (.*))?$", line)
        if line.startswith("    # "):
            above = [] if blank else [*above, line.strip("# ")]
        elif field:
            found[field[1]] = field[2] or " ".join(above)
            above = []
        blank = not line.strip()
    return found


def documented(cls: type) -> dict[str, str]:
    """The ``Args`` of a docstring, by name."""
    section = inspect.getdoc(cls).split("Args:\n")[1].split("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text).replace("``", "`") for name, text in entries}


def rows(cls: type, explain: Callable[[type], dict[str, str]], but: dict) -> Iterator[list[str]]:
    """Name, default and meaning of each field that is not in ``but``."""
    meaning = explain(cls)
    for field in fields(cls):
        if field.init and field.name not in but:
            default = field.default
            shown = f"`{default}`" if hasattr(default, "value") else f"`{default!r}`"
            given = "must be given" if default is MISSING else shown
            yield [f"`{field.name}`", given, meaning[field.name]]


def refused(only: dict[str, tuple]) -> str:
    """A table of what has its default only, and why."""
    return table(
        ["name", "only", "because"],
        [[f"`{name}`", f"`{default!r}`", why] for name, (default, why) in only.items()],
    )


def server_flags() -> Iterator[list[str]]:
    """Flag, group and help of what the server's command line has beside the engine's arguments."""
    for group in make_parser()._action_groups:
        if group.title in ("positional arguments", "options", "engine"):
            continue
        for action in group._group_actions:
            # Python 3.10 writes the default behind what a flag with a `--no-` twin says.
            meaning = (action.help or "").removesuffix(" (default: %(default)s)")
            yield [f"`{action.option_strings[0]}`", group.title, meaning]


def reference() -> str:
    """The whole page."""
    header = ["name", "default", "meaning"]
    variables = [[f"`{name}`", f"`{default}`", meaning] for name, default, meaning in envs.table()]
    return PAGE.format(
        engine=table(header, list(rows(EngineArgs, comments, ENGINE_DEFAULTS_ONLY))),
        engine_refused=refused(ENGINE_DEFAULTS_ONLY),
        sampling=table(header, list(rows(SamplingParams, documented, SAMPLING_DEFAULTS_ONLY))),
        sampling_refused=refused(SAMPLING_DEFAULTS_ONLY),
        beams=table(header, list(rows(BeamSearchParams, documented, {}))),
        server=table(["flag", "of", "meaning"], list(server_flags())),
        environment=table(header, variables),
    )


if __name__ == "__main__":
    (HERE / "reference.md").write_text(reference(), encoding="utf-8")
