"""ModelConfig: the few numbers of a config.json that a Llama-like decoder needs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

# Hugging Face's name of each architecture we can run, and how it differs from the plain Llama.
SUPPORTED_ARCHITECTURES = {
    "LlamaForCausalLM": {},
    "Qwen2ForCausalLM": {"qkv_bias": True},
}
# What generation_config.json may say of sampling, and the names here.
_SAMPLING_DEFAULTS = {
    name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
} | {"max_new_tokens": "max_tokens"}


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of one decoder-only transformer."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    dtype: torch.dtype
    eos_token_ids: frozenset[int]
    default_sampling: dict[str, float]  # what generation_config.json says of SamplingParams

    def kv_bytes_per_token(self, dtype: torch.dtype | None = None) -> int:
        """Bytes of K and V that one token leaves behind, over all layers."""
        numbers = 2 * self.num_layers * self.num_kv_heads * self.head_dim
        return numbers * (dtype or self.dtype).itemsize

    @classmethod
    def from_directory(cls, directory: str | Path) -> ModelConfig:
        """Read ``config.json`` (and ``generation_config.json``) of a Hugging Face directory.

        Raises:
            FileNotFoundError: if there is no such directory, or no config.json in it.
            ValueError: if it cannot be read, or describes a model that we do not have.
        """
        directory = Path(directory)
        if not directory.is_dir():
            raise FileNotFoundError(
                f"model {str(directory)!r} is not a directory; give the path of a Hugging Face "
                "model directory, or no model at all for the embedded one."
            )
        if not (directory / "config.json").is_file():
            raise FileNotFoundError(
                f"model directory {str(directory)!r} has no config.json; a Hugging Face model "
                "directory holds config.json, *.safetensors and tokenizer files."
            )
        from transformers import AutoConfig

        try:
            hf = AutoConfig.from_pretrained(directory, local_files_only=True)
        except Exception as error:
            raise ValueError(f"{directory / 'config.json'} cannot be read: {error}") from error
        return cls._from_hf(hf, _read_generation_config(directory))

    @classmethod
    def _from_hf(cls, hf, generation: dict) -> ModelConfig:
        architecture = (hf.architectures or ["(none)"])[0]
        if architecture not in SUPPORTED_ARCHITECTURES:
            raise ValueError(
                f"architecture {architecture!r} is not supported; "
                f"minivllm runs {', '.join(SUPPORTED_ARCHITECTURES)}."
            )
        _refuse("hidden_act", hf.hidden_act, "silu")
        _refuse("use_sliding_window", getattr(hf, "use_sliding_window", False), False)
        rope = getattr(hf, "rope_parameters", None) or getattr(hf, "rope_scaling", None) or {}
        _refuse("rope_type", rope.get("rope_type", rope.get("type", "default")), "default")
        attention_bias = getattr(hf, "attention_bias", False)
        differences = SUPPORTED_ARCHITECTURES[architecture]
        eos_ids = set()
        for ids in (hf.eos_token_id, generation.get("eos_token_id")):
            eos_ids.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
        return cls(
            architecture=architecture,
            vocab_size=hf.vocab_size,
            hidden_size=hf.hidden_size,
            intermediate_size=hf.intermediate_size,
            num_layers=hf.num_hidden_layers,
            num_heads=hf.num_attention_heads,
            num_kv_heads=hf.num_key_value_heads or hf.num_attention_heads,
            head_dim=getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads,
            max_position_embeddings=hf.max_position_embeddings,
            rms_norm_eps=hf.rms_norm_eps,
            rope_theta=float(rope.get("rope_theta") or getattr(hf, "rope_theta", 10000.0)),
            tie_word_embeddings=hf.tie_word_embeddings,
            qkv_bias=differences.get("qkv_bias", attention_bias),
            o_bias=attention_bias,
            mlp_bias=getattr(hf, "mlp_bias", False),
            dtype=_torch_dtype(getattr(hf, "dtype", None)),
            eos_token_ids=frozenset(eos_ids),
            default_sampling={
                ours: generation[theirs]
                for theirs, ours in _SAMPLING_DEFAULTS.items()
                if generation.get(theirs) is not None
            },
        )


def _read_generation_config(directory: Path) -> dict:
    file = directory / "generation_config.json"
    if not file.is_file():
        return {}
    try:
        return json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def _refuse(name: str, value, only) -> None:
    if value != only:
        raise ValueError(f"{name}={value!r} in config.json is not supported; only {only!r} is.")


def _torch_dtype(name) -> torch.dtype:
    if isinstance(name, torch.dtype):
        return name
    return getattr(torch, name) if name else torch.float32
