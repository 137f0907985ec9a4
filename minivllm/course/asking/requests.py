"""make_request: a small request with a name, for exercises and notebooks."""

from __future__ import annotations

from minivllm.lora.request import LoadedLoRA, LoRARequest
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams


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
    request = Request(
        name,
        [0] * prompt if isinstance(prompt, int) else prompt,
        SamplingParams(n=n, max_tokens=num_output, ignore_eos=True),
        arrival_time=arrival_step,
        priority=priority,
        cache_salt=cache_salt,
        lora_request=lora_request,
    )
    if lora_request is not None:
        request.lora = LoadedLoRA.from_request(lora_request)
    return request
