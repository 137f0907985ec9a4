"""LoRARequest: which adapter a request asks for, and LoadedLoRA: which one that turned out to be.

(vLLM: vllm/lora/request.py)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from minivllm.utils.validation import check, is_int, is_text


@dataclass(frozen=True, eq=False)
class LoRARequest:
    """An adapter by name, id and directory. Two with one name are equal, as in vLLM.

    Args:
        lora_name: how users call it.
        lora_int_id: at least 1, another one for each adapter.
        lora_path: a directory as PEFT writes it.
        base_model_name: what it was trained on, as a server's list of models says.
        load_inplace: read the files again, though the id is in use.

    Raises:
        ValueError: for a value out of range, naming it.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False

    def __post_init__(self):
        name = self.lora_name
        path = self.lora_path
        base = self.base_model_name
        check(is_text(name) and name != "", "lora_name", name, "a non-empty string")
        check(is_int(self.lora_int_id), "lora_int_id", self.lora_int_id, "an integer above 0")
        if self.lora_int_id < 1:
            raise ValueError(f"id must be > 0, got {self.lora_int_id}")
        check(is_text(path), "lora_path", path, "the path of a directory")
        if not path:
            raise ValueError("lora_path cannot be empty")
        check(base is None or is_text(base), "base_model_name", base, "a string or None")
        check(isinstance(self.load_inplace, bool), "load_inplace", self.load_inplace, "a bool")

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return self.lora_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoRARequest) and self.lora_name == other.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)


class LoadedLoRA(NamedTuple):
    """An adapter as it was read: other files under the same id are another one."""

    lora_int_id: int
    lora_name: str
    lora_path: str
    digest: str = ""  # of the files; empty where there are none, as in a simulation

    @classmethod
    def from_request(cls, request: LoRARequest, digest: str = "") -> LoadedLoRA:
        """Make the identity of a request's adapter, whose files have this digest."""
        return cls(request.lora_int_id, request.lora_name, request.lora_path, digest=digest)
