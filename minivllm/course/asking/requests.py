"""make_request: a small request with a name, for exercises and notebooks."""

from __future__ import annotations

from minivllm.lab.sim import make
from minivllm.lora.request import LoRARequest
from minivllm.request import Request


def make_request(
    name: str,
    prompt: int | list[int],
    num_output: int,
    arrival_step: int = 0,
    *,
    n: int = 1,
    priority: int = 0,
    cache_salt: str | None = None,
    lora_request: LoRARequest | None = None,
) -> Request:
    """Request of this name; its prompt is token ids, or their number. No adapter is read."""
    return make.make_request(
        name,
        prompt,
        num_output,
        arrival_time=arrival_step,
        priority=priority,
        cache_salt=cache_salt,
        lora_request=lora_request,
        n=n,
    )
