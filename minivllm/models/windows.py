"""Windows of layers: some see all tokens, others only the last ones.

A config.json has ``layer_types``, a name for each layer, or an older form that says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minivllm.utils.validation import check, is_int

FULL = "full_attention"
SLIDING = "sliding_attention"
MOST_TOKENS = 2**22  # of a window


def read_windows(hf: Any, default: Sequence[str]) -> tuple[int | None, ...]:
    """Tokens that each layer of a Hugging Face config sees, itself among them; None: all.

    Args:
        hf: the config.
        default: types of its layers, where it has no ``layer_types``.

    Raises:
        ValueError: for a window that cannot be, or types that are not those of its layers.
    """
    window = getattr(hf, "sliding_window", None)
    _check_window(window is None or (is_int(window, 1) and window <= MOST_TOKENS), window)
    types = getattr(hf, "layer_types", None) or default
    check_layer_types(types, hf.num_hidden_layers)
    return tuple(window if kind == SLIDING else None for kind in types)


def given_layer_types(fields: Mapping[str, Any]) -> Sequence[str] | None:
    """``layer_types`` of a config.json itself, of its text half if it has one; None: it has none.

    transformers makes up its own then, and of wrong ones it complains in several lines, or not; so
    it does of a window that is no integer.

    Raises:
        ValueError: if they are not those of its layers, or for such a window.
    """
    half = fields.get("text_config")
    half = half if isinstance(half, dict) else fields
    window = half.get("sliding_window")
    _check_window(window is None or is_int(window), window)
    types = half.get("layer_types")
    num_layers = half.get("num_hidden_layers")
    if types is not None and isinstance(num_layers, int):
        check_layer_types(types, num_layers)
    return types


def _check_window(ok: bool, window: Any) -> None:
    allowed = f"None, or an integer from 1 to {MOST_TOKENS}"
    check(ok, "sliding_window in config.json", window, allowed)


def check_layer_types(types: Any, num_layers: int) -> None:
    """Raise ``ValueError`` unless there is a type that we have for each layer."""
    name = "layer_types in config.json"
    check(isinstance(types, (list, tuple)), name, types, "a list with a type for each layer")
    ok = len(types) == num_layers
    check(ok, f"the length of {name}", len(types), f"{num_layers}, the number of layers")
    for kind in types:
        allowed = f"{FULL!r} or {SLIDING!r}, as minivllm has no other layers"
        check(kind in (FULL, SLIDING), f"an item of {name}", kind, allowed)
