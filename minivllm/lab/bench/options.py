"""Options of several commands of ``minivllm bench``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from minivllm.utils.validation import check, is_int


def at_least(low: int) -> Callable[[typer.CallbackParam, int | None], int | None]:
    """A typer callback that refuses smaller integers with a ``ValueError``."""

    def checked(param: typer.CallbackParam, value: int | None) -> int | None:
        ok = value is None or is_int(value, low)
        check(ok, str(param.name), value, f"an integer of at least {low}")
        return value

    return checked


def count(help: str, low: int = 1):
    """An option whose value is an integer of at least ``low``."""
    return typer.Option(help=help, callback=at_least(low))


def _use_threads(value: int | None) -> int:
    import torch

    check(value is None or is_int(value, 1), "threads", value, "an integer of at least 1")
    if value is not None:
        torch.set_num_threads(value)
    return torch.get_num_threads()


AsyncScheduling = Annotated[
    bool,
    typer.Option(
        "--async-scheduling/--no-async-scheduling",
        help="Plan a step while the one before it runs.",
    ),
]
Backend = Annotated[str, typer.Option(help="How layers read the KV cache.")]
Dtype = Annotated[str, typer.Option(help="Of weights, activations, K and V.")]
Model = Annotated[
    str,
    typer.Option(help="tiny, small, qwen3-0.6b, llama-8b, embedded, smollm2, or a directory."),
]
Repeats = Annotated[int, count("Runs, after one that warms up.")]
# The function gets the number in use.
Threads = Annotated[int, typer.Option(help="Of torch; none: as it chooses.", callback=_use_threads)]
