"""PEFTHelper: an ``adapter_config.json``, checked, and each layer's rank and scale from it.

(vLLM: vllm/lora/peft_helper.py)
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex  # ``re`` with a time limit

from minivllm.config.lora import LoRAConfig
from minivllm.lora.adapter_files import AdapterFile
from minivllm.utils.validation import check, is_int, is_number, is_text, shown

_REQUIRED = ("r", "lora_alpha", "target_modules")
_HARMLESS_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")  # the base stays as it is
_NOT_HERE = {  # fields that must be unset, and vLLM's sentences
    "use_dora": "vLLM does not yet support DoRA.",
    "lora_bias": "vLLM does not support LoRA bias (lora_bias).",
    "alora_invocation_tokens": "vLLM does not support Activated LoRA (aLoRA).",
    "layer_replication": "vLLM does not support layer_replication.",
    "use_bdlora": "vLLM does not support block-diagonal LoRA (BD-LoRA).",
    "use_qalora": "vLLM does not support QALoRA.",
}
_SECONDS = 2.0  # for all patterns of an adapter; PEFT's own take microseconds
# what ``regex`` would unroll, and its own syntax beyond Python's
_EXPENSIVE = re.compile(r"\)\{|\(\?(?!:)|\{(?!\d{1,2}(,\d{0,2})?\})")


@dataclass(frozen=True)
class PEFTHelper:
    """The part of an adapter's config that says how large its layers and their scales are."""

    path: Path
    r: int
    lora_alpha: float
    use_rslora: bool
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]

    @classmethod
    def from_file(cls, file: AdapterFile, config: LoRAConfig) -> PEFTHelper:
        """Read a config.

        Raises:
            ValueError: for a value that is not allowed, or with all reasons why the engine cannot
                run such an adapter.
        """
        try:
            fields = _parse(file.data)
            _check_kinds(fields)
            if reasons := _reasons_against(fields, config):
                raise ValueError(" ".join(reasons))
        except ValueError as error:
            raise ValueError(f"{file.path}: {error}") from error
        return cls(
            file.path,
            r=fields["r"],
            lora_alpha=fields["lora_alpha"],
            use_rslora=bool(fields.get("use_rslora")),
            rank_pattern=fields.get("rank_pattern") or {},
            alpha_pattern=fields.get("alpha_pattern") or {},
        )

    def ranks_and_scalings(self, modules: Iterable[str]) -> dict[str, tuple[int, float]]:
        """Each layer's rank, and the number by which its product is multiplied.

        Args:
            modules: the layers' names in the checkpoint, "model.layers.0.self_attn.q_proj".

        Raises:
            ValueError: if a pattern is no regular expression, or all together take too long.
        """
        deadline = time.monotonic() + _SECONDS
        ranks = self._values("rank_pattern", modules, deadline)
        alphas = self._values("alpha_pattern", modules, deadline)
        found = {}
        for module in modules:
            rank = int(ranks.get(module, self.r))
            alpha = alphas.get(module, self.lora_alpha)
            found[module] = (rank, alpha / (math.sqrt(rank) if self.use_rslora else rank))
        return found

    def _values(self, field: str, modules: Iterable[str], deadline: float) -> dict[str, float]:
        """For each module the value of the first key that matches it, or its end behind a dot."""
        found: dict[str, float] = {}
        for key, value in getattr(self, field).items():
            try:
                if _EXPENSIVE.search(key):
                    raise ValueError("it has extensions or repeats a group a number of times")
                pattern = regex.compile(rf"(.*\.)?({key})")
                for module in [name for name in modules if name not in found]:
                    if pattern.fullmatch(module, timeout=_left(deadline)):
                        found[module] = value
            except TimeoutError as error:
                raise ValueError(
                    f"{self.path}: {field} takes longer than {_SECONDS:g} s to match."
                ) from error
            except (regex.error, RecursionError, ValueError) as error:
                raise ValueError(
                    f"{self.path}: {field} has a key {shown(key)} that cannot be used as a regular "
                    f"expression: {error}."
                ) from error
        return found


def _parse(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    if missing := [name for name in _REQUIRED if name not in fields]:
        raise ValueError(f"Missing required configuration fields: {{{str(missing)[1:-1]}}}")
    return fields


def _check_kinds(fields: dict[str, Any]) -> None:
    if not is_int(fields["r"], 1):
        raise ValueError(f"LoRA rank `r` must be a positive integer, got {shown(fields['r'])}.")
    alpha = fields["lora_alpha"]
    rslora = fields.get("use_rslora")
    check(is_number(alpha), "lora_alpha", alpha, "a number")
    check(rslora is None or isinstance(rslora, bool), "use_rslora", rslora, "true or false")
    for name in ("target_modules", "modules_to_save"):
        value = fields.get(name)
        ok = value is None or is_text(value) or _are_texts(value)
        check(ok, name, value, "a string or a list of strings")
    kinds: dict[str, tuple[Callable[[Any], bool], str]] = {
        "rank_pattern": (lambda value: is_int(value, 1), "positive integers"),
        "alpha_pattern": (is_number, "numbers"),
    }
    for name, (is_right, allowed) in kinds.items():
        value = fields.get(name) or {}
        ok = isinstance(value, dict) and all(map(is_right, value.values()))
        check(ok, name, value, f"an object of patterns and {allowed}")


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _reasons_against(fields: dict[str, Any], config: LoRAConfig) -> list[str]:
    """Sentences why an engine cannot run an adapter with this config, vLLM's where it has one."""
    reasons = [sentence for name, sentence in _NOT_HERE.items() if fields.get(name)]
    saved = fields.get("modules_to_save") or []
    saved = [saved] if isinstance(saved, str) else saved
    if others := [name for name in saved if name not in ("classifier", "score")]:
        reasons.append(
            "vLLM only supports modules_to_save being either None or "
            '["classifier", "score"] for classification models. '
            f"Unsupported modules_to_save: {shown(others)}"
        )
    init = fields.get("init_lora_weights")
    if isinstance(init, str) and init.lower() not in _HARMLESS_INITS:
        reasons.append(
            f"vLLM does not support init_lora_weights={shown(init)}. It changes the base model, "
            "too; PEFT saves a plain adapter with path_initial_model_for_weight_conversion."
        )
    rank = max([fields["r"], *(fields.get("rank_pattern") or {}).values()])
    if rank > config.max_lora_rank:
        most = config.max_lora_rank
        reasons.append(f"LoRA rank {shown(rank)} is greater than max_lora_rank {most}.")
    if fields.get("bias", "none") != "none":
        reasons.append("Adapter bias is not supported.")
    return reasons


def _left(deadline: float) -> float:
    """Seconds until then.

    Raises:
        TimeoutError: if there are none.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
