"""Rotary positions (RoFormer, Su et al. 2021), and the ways to stretch them to longer texts.

Each pair of numbers in a head turns by ``position * frequency``. A model trained on short texts
reads longer ones when its slow frequencies, which never came full circle, are made slower still;
the types differ in which ones they touch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from minivllm.utils.validation import check, is_int, is_number


class RotaryEmbedding(nn.Module):
    """Cosines and sines of all positions that the model knows, computed once.

    (vLLM: RotaryEmbedding, vllm/model_executor/layers/rotary_embedding/base.py)

    Args:
        head_dim: numbers per head.
        rope: ``rope_type``, ``rope_theta`` and what the type needs, as in a config.json.
        num_positions: how many there are.
    """

    cos_sin_cache: torch.Tensor  # [num_positions, 2, head_dim], as ``ops.rotary_embedding`` has it

    def __init__(self, head_dim: int, rope: dict, num_positions: int):
        super().__init__()
        with torch.device("cpu"):  # parameters may have no memory yet, but these are numbers
            cache = self._compute(head_dim, rope, num_positions)
        self.register_buffer("cos_sin_cache", cache, persistent=False)

    @staticmethod
    def _compute(head_dim: int, rope: dict, num_positions: int) -> torch.Tensor:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        scaling, _ = ROPE_TYPES[rope["rope_type"]]
        frequencies, factor = scaling(1 / rope["rope_theta"] ** exponents, rope)
        angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
        cos, sin = angles.cos() * factor, angles.sin() * factor
        cache = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
        return cache.to(torch.get_default_dtype())  # the model's, while it is made

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """Cosine and sine for each token, ``[num_tokens, 2, head_dim]``."""
        return self.cos_sin_cache.index_select(0, positions)


def _default(frequencies: torch.Tensor, rope: dict) -> tuple[torch.Tensor, float]:
    return frequencies, 1.0


def _linear(frequencies: torch.Tensor, rope: dict) -> tuple[torch.Tensor, float]:
    """Linear scaling: positions are squeezed into the trained range (Chen et al. 2023)."""
    return frequencies / rope["factor"], 1.0


def _llama3(frequencies: torch.Tensor, rope: dict) -> tuple[torch.Tensor, float]:
    """Llama 3's scaling: fast frequencies stay, slow ones are divided, those between interpolated.

    (Llama 3.1's code, ``apply_scaling``)
    """
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * frequencies + (1 - keep) * frequencies / rope["factor"], 1.0


def _yarn(frequencies: torch.Tensor, rope: dict) -> tuple[torch.Tensor, float]:
    """YaRN: as Llama 3's, but the ramp is linear in the pair's index, and attention is sharpened.

    (YaRN, Peng et al. 2023, sections 3.2 and 3.4)
    """
    num_pairs = len(frequencies)
    factor = rope["factor"]

    def pair_that_turns(times: float) -> float:
        """The index of the pair that comes full circle so often in the trained length."""
        wavelength = rope["original_max_position_embeddings"] / (2 * math.pi * times)
        return num_pairs * math.log(wavelength) / math.log(rope["rope_theta"])

    first = pair_that_turns(rope.get("beta_fast") or 32)
    last = pair_that_turns(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * num_pairs - 1)
    pairs = torch.arange(num_pairs, dtype=torch.float32)
    slow = ((pairs - first) / max(last - first, 0.001)).clamp(0, 1)

    def sharpness(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    attention_factor = rope.get("attention_factor")
    if attention_factor is None:
        attention_factor = sharpness(1)
        if rope.get("mscale") and rope.get("mscale_all_dim"):
            attention_factor = sharpness(rope["mscale"]) / sharpness(rope["mscale_all_dim"])
    return frequencies * (1 - slow) + frequencies / factor * slow, attention_factor


def _freq_factors(frequencies: torch.Tensor, rope: dict) -> tuple[torch.Tensor, float]:
    """A factor for each frequency: a GGUF file has Llama 3's scaling in this form."""
    return frequencies / torch.tensor(rope["freq_factors"]), 1.0


# Each type of a config.json, and what it needs besides rope_theta. "dynamic" changes nothing up to
# max_position_embeddings. Beyond, every length has frequencies of its own: K in the cache, turned
# by those of another length, would be wrong, so that is where we stop (see max_positions).
ROPE_TYPES = {
    "default": (_default, ()),
    "linear": (_linear, ("factor",)),
    "dynamic": (_default, ("factor",)),
    "llama3": (
        _llama3,
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    ),
    "yarn": (_yarn, ("factor", "original_max_position_embeddings")),
    "freq_factors": (_freq_factors, ("freq_factors",)),
}


def read_rope(hf, layer_type: str | None = None, base: float = 10000.0) -> dict:
    """The rotary parameters of a Hugging Face config, in the form of transformers 5.

    Args:
        hf: the config.
        layer_type: of the layers that turn by them, in a config with a set for each type; one with
            a single set has it for all of them.
        base: ``rope_theta``, if the config has none.

    Raises:
        ValueError: for a type that we do not have, or one that lacks a number it needs.
    """
    given = getattr(hf, "rope_parameters", None) or getattr(hf, "rope_scaling", None)
    rope: dict[str, Any] = dict(given or {})
    if layer_type in rope:
        of_type = rope[layer_type] or {}
        name = f"{layer_type} of rope_parameters in config.json"
        check(isinstance(of_type, dict), name, of_type, "an object")
        rope = dict(of_type)
    rope.setdefault("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta") or getattr(hf, "rope_theta", 0) or base
    rope["rope_theta"] = read_base("rope_theta", theta)
    rope.setdefault("original_max_position_embeddings", hf.max_position_embeddings)
    trained = rope["original_max_position_embeddings"]
    if rope["rope_type"] == "yarn" and rope.get("factor") is None and is_int(trained, 1):
        rope["factor"] = hf.max_position_embeddings / trained
    if rope["rope_type"] not in ROPE_TYPES:
        raise ValueError(
            f"rope_type={rope['rope_type']!r} in config.json is not supported; "
            f"minivllm knows {', '.join(ROPE_TYPES)}."
        )
    _, needed = ROPE_TYPES[rope["rope_type"]]
    for name in needed:
        if not isinstance(rope.get(name), (int, float)):
            raise ValueError(
                f"rope_type={rope['rope_type']!r} in config.json needs the number {name!r}, "
                f"got {rope.get(name)!r}."
            )
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"partial_rotary_factor={rope['partial_rotary_factor']!r} in config.json is not "
            "supported; every number of a head is turned."
        )
    return rope


def read_base(name: str, base: Any) -> float:
    """Read the base of frequencies. Raises ``ValueError`` unless it is a positive number."""
    ok = is_number(base) and 0 < base < math.inf
    check(ok, f"{name} in config.json", base, "a positive number")
    return float(base)


def max_positions(rope: dict, max_position_embeddings: int) -> int:
    """The longest text that the scaling was made for (vLLM: ``_get_and_verify_max_len``).

    YaRN's ``max_position_embeddings`` is the stretched length already.
    """
    if rope["rope_type"] == "linear":
        return int(max_position_embeddings * rope["factor"])
    return max_position_embeddings
