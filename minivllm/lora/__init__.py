"""LoRA: adapters, small additions to a base model's weights, chosen per request."""

from minivllm.lora.request import LoRARequest

__all__ = ["LoRARequest"]
