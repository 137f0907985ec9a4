"""GPTQ (Frantar et al. 2022): 2, 3, 4 or 8 bits, packed along the inputs (notebook 18b).

Word ``(i, n)`` of ``qweight`` holds neighbouring inputs of output n, the first in its lowest bits.
(vLLM: vllm/model_executor/layers/quantization/auto_gptq.py)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from minivllm.quantization.base_config import (
    QuantizationConfig,
    QuantizedWeight,
    Scheme,
    TensorSpec,
)
from minivllm.quantization.fields import Fields, check_pattern
from minivllm.quantization.packing import check_g_idx, num_groups, num_words, unpack
from minivllm.utils.validation import check

BITS = (2, 3, 4, 8)


@dataclass(frozen=True)
class GPTQScheme(Scheme):
    """A layer's bits and groups.

    ``v1`` checkpoints store each zero less 1. With ``sym`` all zeros are half of the range, and
    the stored ones are not needed. With ``desc_act`` the quantizer took inputs in the order of
    their importance, so that ``g_idx`` says which group each is in.
    """

    bits: int
    group_size: int
    sym: bool = True
    desc_act: bool = False
    v1: bool = True

    output_dim = 1

    @classmethod
    def read(cls, config: Fields) -> GPTQScheme:
        """Read bits, group_size, sym, desc_act and checkpoint_format.

        Raises:
            ValueError: for a value that we do not have.
        """
        return cls(
            bits=config.one_of("bits", BITS),
            group_size=config.group_size(),
            sym=config.one_of("sym", (True, False), True),
            desc_act=config.one_of("desc_act", (True, False), False),
            v1=config.one_of("checkpoint_format", ("gptq", "gptq_v2"), "gptq") == "gptq",
        )

    def tensors(self, name: str, input_size: int, output_size: int) -> dict[str, TensorSpec]:
        rows = num_words(input_size, self.bits, f"the inputs of {name}")
        columns = num_words(output_size, self.bits, f"the outputs of {name}")
        groups = num_groups(input_size, self.group_size, f"the inputs of {name}")
        return {
            "qweight": TensorSpec((rows, output_size), torch.int32),
            "qzeros": TensorSpec((groups, columns), torch.int32, optional=self.sym),
            "scales": TensorSpec((groups, output_size)),
            "g_idx": TensorSpec((input_size,), torch.int32, optional=not self.desc_act),
        }

    def check(self, name: str, tensors: Mapping[str, torch.Tensor]) -> set[str]:
        done = set()
        groups = len(tensors["scales"])
        if "g_idx" in tensors and check_g_idx(tensors["g_idx"], groups, f"{name}.g_idx"):
            done.add("g_idx")
        stored = unpack(tensors["qzeros"], self.bits) if "qzeros" in tensors else None
        if self.sym and stored is not None:
            half = 2 ** (self.bits - 1)
            ok = int(stored[0, 0]) in (half - 1, half) and bool((stored == stored[0, 0]).all())
            allowed = f"all {half}, or {half - 1} in v1, where sym is true"
            check(ok, f"{name}.qzeros", stored.unique().tolist(), allowed)
            done.add("qzeros")
        elif self.v1 and stored is not None:
            # a zero of 0, stored as -1, has borrowed from its neighbour, or not: packers differ
            last = 2**self.bits - 1
            allowed = f"at most {last - 1}, zeros less 1 (checkpoint_format gptq_v2 has them all)"
            check(not bool((stored == last).any()), f"{name}.qzeros", last, allowed)
        return done

    def unpack(self, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
        codes = unpack(tensors["qweight"].T, self.bits)
        zeros: torch.Tensor | int = 2 ** (self.bits - 1)
        if not self.sym:
            zeros = unpack(tensors["qzeros"], self.bits).T + int(self.v1)
        return QuantizedWeight(codes, tensors["scales"].T, zeros, tensors.get("g_idx"))


@dataclass(frozen=True)
class GPTQConfig(QuantizationConfig):
    """GPTQ: one scheme, and rules for layers that differ or were left out."""

    scheme: GPTQScheme
    lm_head: bool = False
    dynamic: dict[str, GPTQScheme | None] = field(default_factory=dict)  # None: left out
    modules: tuple[str, ...] = ()  # endings of the quantized layers' names; none: all

    name = "gptq"

    @classmethod
    def from_config(cls, config: dict, source: str) -> GPTQConfig:
        fields = Fields(config, source)
        fields.one_of("is_marlin_format", (False,), False)
        dynamic: dict[str, GPTQScheme | None] = {}
        rules = fields.part("dynamic")
        for rule in rules.values:
            pattern = rule.removeprefix("-:").removeprefix("+:")
            check_pattern(pattern, rules.source)
            changes = rules.part(rule)
            merged = Fields(config | changes.values, changes.source)
            dynamic[rule] = None if rule.startswith("-:") else GPTQScheme.read(merged)
        return cls(
            scheme=GPTQScheme.read(fields),
            lm_head=fields.one_of("lm_head", (True, False), False),
            dynamic=dynamic,
            modules=tuple(fields.strings("modules_in_block_to_quantize", nested=True)),
        )

    def get_scheme(self, name: str) -> Scheme | None:
        if name == "lm_head":
            return self.scheme if self.lm_head else None
        for pattern, scheme in self.dynamic.items():
            if re.match(pattern.removeprefix("-:").removeprefix("+:"), name):
                return scheme
        if self.modules and not any(f".{name}".endswith(f".{m}") for m in self.modules):
            return None
        return self.scheme
