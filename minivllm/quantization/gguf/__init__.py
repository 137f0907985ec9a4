"""GGUF: one file with a model's shapes, tokenizer and weights, as llama.cpp reads it."""

from minivllm.quantization.gguf.config import is_gguf, load_config
from minivllm.quantization.gguf.quantization import GGUFConfig
from minivllm.quantization.gguf.tokenizer import load_tokenizer
from minivllm.quantization.gguf.weights import weights_iterator

__all__ = ["GGUFConfig", "is_gguf", "load_config", "load_tokenizer", "weights_iterator"]
