"""LoRAConfig: how many adapters an engine holds, and how large they may be.

It is checked when it is made. (vLLM: vllm/config/lora.py)
"""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.utils.validation import check, is_int, is_one_of, is_text

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
LORA_DTYPES = ("auto", "float16", "bfloat16", "float32")


@dataclass(frozen=True)
class LoRAConfig:
    """Limits of adapters: in a step, in host memory, and of each one's rank.

    Raises:
        ValueError: for a value out of range, naming it.
    """

    max_loras: int = 1  # adapters in one step: slots on the device
    max_lora_rank: int = 16  # the largest rank; slots have room for it
    max_cpu_loras: int | None = None  # adapters in host memory; None: as many as slots
    lora_dtype: str = "auto"  # of their weights; "auto": the model's
    target_modules: tuple[str, ...] | None = None  # endings of layer names; None: all

    def __post_init__(self):
        check(is_int(self.max_loras, 1), "max_loras", self.max_loras, "an integer of at least 1")
        ok = is_int(self.max_lora_rank) and self.max_lora_rank in MAX_LORA_RANKS
        ranks = ", ".join(map(str, MAX_LORA_RANKS))
        check(ok, "max_lora_rank", self.max_lora_rank, f"one of {ranks}")
        most = self.max_loras if self.max_cpu_loras is None else self.max_cpu_loras
        object.__setattr__(self, "max_cpu_loras", most)
        check(is_int(most, 1), "max_cpu_loras", most, "an integer of at least 1, or None")
        if most < self.max_loras:
            raise ValueError(f"max_cpu_loras ({most}) must be >= max_loras ({self.max_loras}).")
        ok = is_one_of(self.lora_dtype, LORA_DTYPES)
        check(ok, "lora_dtype", self.lora_dtype, f"one of {', '.join(LORA_DTYPES)}")
        names = self.target_modules
        if names is not None:
            names = tuple(names) if isinstance(names, (list, tuple, set)) else ()
            ok = names != () and all(is_text(name) and name != "" for name in names)
            allowed = "a list of names of linear layers, or None"
            check(ok, "lora_target_modules", self.target_modules, allowed)
            object.__setattr__(self, "target_modules", names)


def make_lora_config(enable_lora: bool, **values) -> LoRAConfig | None:
    """Make the LoRAConfig of an engine's arguments: checked, and None unless it is enabled."""
    config = LoRAConfig(**values)
    return config if enable_lora else None
