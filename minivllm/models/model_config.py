"""ModelConfig: the few numbers of a config.json that a decoder is built from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from minivllm.config import KV_CACHE_DTYPES
from minivllm.config.kv_cache_size import kv_bytes_per_token
from minivllm.distributed.shard import (
    check_tensor_parallel_size,
    divides,
    get_pp_indices,
    kv_head_share,
)
from minivllm.models.generation_config import read_generation_config, sampling_defaults
from minivllm.models.rope import max_positions
from minivllm.models.windows import given_layer_types
from minivllm.utils.json_files import read_json_object
from minivllm.utils.validation import check, is_int, is_text

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_MOST = {  # of each size: memory is asked for by it
    "vocab_size": 2**24, "hidden_size": 2**20, "intermediate_size": 2**20,
    "num_hidden_layers": 2**12, "num_attention_heads": 2**12, "num_key_value_heads": 2**12,
    "head_dim": 2**10, "max_position_embeddings": 2**22,
    # of towers
    "image_size": 2**14, "patch_size": 2**10, "num_channels": 2**10, "embed_dim": 2**20,
    "in_channels": 2**10, "mlp_ratio": 2**10, "num_mel_bins": 2**14, "max_source_positions": 2**20,
}  # fmt: skip


class BlockSizes(Protocol):
    """Sizes of a layer's attention and MLP: what both ask of a config, a decoder's or a tower's."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def intermediate_size(self) -> int: ...

    @property
    def num_heads(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def hidden_act(self) -> str: ...

    @property
    def qkv_bias(self) -> bool: ...

    @property
    def o_bias(self) -> bool: ...

    @property
    def mlp_bias(self) -> bool: ...


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
    norm_eps: float
    hidden_act: str
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    sliding_windows: tuple[int | None, ...]  # per layer: how many tokens one sees; None: all
    dtype: torch.dtype
    eos_token_ids: frozenset[int]
    default_sampling: dict[str, Any]  # what generation_config.json says of SamplingParams
    rope: dict[str, Any] | None = None  # None: positions are learned
    local_rope: dict[str, Any] | None = None  # that of layers with a window, where it is another
    query_pre_attn_scalar: float | None = None  # scores are divided by its root; None: head_dim's
    final_logit_softcapping: float | None = None  # logits stay below it; None: they may be any
    has_float16: bool = True  # False: its numbers grow too large for it
    position_offset: int = 0  # the row of learned positions where position 0 is
    quant_config: Any = None  # a QuantizationConfig, a room below; None: weights are floats
    runner_type: str = "generate"  # or "pooling": its output is vectors
    pooler_config: Any = None  # the PoolerConfig of a pooling model
    supported_tasks: tuple[str, ...] = ()  # of a pooling model
    dense_layers: tuple[Any, ...] = ()  # of Sentence Transformers, behind its pooling
    embedding_size: int = 0  # of a pooling model's vectors
    is_matryoshka: bool = False  # its first numbers are an embedding, too
    matryoshka_dimensions: list[int] | None = None  # how many of them; None: any
    is_encoder_only: bool = False  # no K and V are kept
    max_seq_length: int | None = None  # tokens of a text, where files beside config.json say so
    do_lower_case: bool = False  # texts are read in lower case
    type_vocab_size: int = 1  # of an encoder: types that a token can have
    start_layer: int = 0  # of a stage: what number its first layer has in the whole model
    # the class of what makes embeddings of pictures or sound, by its name; None: it reads text
    multimodal_architecture: str | None = None
    placeholder_ids: frozenset[int] = frozenset()  # tokens in whose places these embeddings stand
    hf_config: Any = field(default=None, repr=False, compare=False)  # as transformers reads it

    @property
    def is_multimodal(self) -> bool:
        """True for a decoder that also reads pictures or sound."""
        return self.multimodal_architecture is not None

    @property
    def max_model_len(self) -> int:
        """The longest sequence that the model was made for, in tokens."""
        longest = self.max_position_embeddings
        kind = None
        if self.rope is not None:
            kind = self.rope["rope_type"]
            if self.local_rope is None:  # with one, it is the stretched length already
                longest = max_positions(self.rope, longest)
        if self.max_seq_length is None:
            return longest
        ends = kind in (None, "dynamic")  # there are no positions beyond; others go on
        return min(longest, self.max_seq_length) if ends else self.max_seq_length

    @property
    def classifier_method(self) -> str | None:
        """The way from rows of ``classifier_from_token`` to a classifier; None: it has its own."""
        hf = self.hf_config
        tokens = getattr(hf, "classifier_from_token", None)
        if not isinstance(tokens, list):
            return None
        if getattr(hf, "is_original_qwen3_reranker", False):
            return "from_2_way_softmax"
        usual = "from_2_way_softmax" if len(tokens) == 2 else "no_post_processing"
        return getattr(hf, "method", None) or usual

    @property
    def num_labels(self) -> int:
        """Classes of a classifier: as config.json says; of the kinds of reward models known."""
        method = self.classifier_method
        hf = self.hf_config
        if method is not None:
            return 1 if method == "from_2_way_softmax" else len(hf.classifier_from_token)
        fixed = {"Qwen2ForRewardModel": 1, "Qwen2ForProcessRewardModel": 2}
        return fixed.get(self.architecture, getattr(hf, "num_labels", 0))

    @property
    def id2label(self) -> dict[int, str]:
        """Names of the classes."""
        return getattr(self.hf_config, "id2label", None) or {}

    def can_be_shared(self, size: int) -> bool:
        """True if ``size`` ranks can share every layer."""
        return size == 1 or (
            self.quant_config is None
            and divides(self.num_heads, self.num_kv_heads, self.intermediate_size, size=size)
        )

    def shard(self, rank: int, size: int) -> ModelConfig:
        """Config of one of ``size`` ranks that share every layer: fewer heads, a narrower MLP.

        Raises:
            ValueError: if ``size`` does not divide them, or the weights are quantized.
        """
        check_tensor_parallel_size(
            self.num_heads, self.num_kv_heads, self.intermediate_size, size=size
        )
        ok = size == 1 or self.quant_config is None
        check(
            ok, "tensor_parallel_size", size, "1 for quantized weights, which are not divided yet"
        )
        kv_heads = kv_head_share(self.num_kv_heads, rank, size)
        return replace(
            self,
            num_heads=self.num_heads // size,
            num_kv_heads=kv_heads.stop - kv_heads.start,
            intermediate_size=self.intermediate_size // size,
        )

    def stage(self, rank: int, size: int) -> ModelConfig:
        """Config of one of ``size`` stages: some of the layers.

        Raises:
            ValueError: if there are more stages than layers, or the model samples nothing.
        """
        ok = size == 1 or self.runner_type == "generate"
        check(ok, "pipeline_parallel_size", size, "1 for a pooling model, which has no stages yet")
        ok = size == 1 or not self.is_multimodal
        allowed = "1 for a model of pictures or sound, which has no stages yet"
        check(ok, "pipeline_parallel_size", size, allowed)
        begin, end = get_pp_indices(self.num_layers, rank, size)
        return replace(
            self,
            num_layers=end - begin,
            sliding_windows=self.sliding_windows[begin:end],
            start_layer=self.start_layer + begin,
        )

    def kv_cache_dtype(self, cache_dtype: str = "auto") -> torch.dtype:
        """Dtype of K and V in the cache, by a name of ``KV_CACHE_DTYPES``."""
        name = KV_CACHE_DTYPES[cache_dtype]
        return self.dtype if name is None else getattr(torch, name)

    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V per token in the model's dtype, over all layers; 0 of an encoder."""
        num_layers = 0 if self.is_encoder_only else self.num_layers
        return kv_bytes_per_token(
            num_layers, self.num_kv_heads, self.head_dim, bytes_per_number=self.dtype.itemsize
        )

    @classmethod
    def from_directory(
        cls,
        directory: str | Path,
        architecture: str,
        read_config: Callable[[Any], dict[str, Any]],
        hf_overrides: dict[str, Any] | None = None,
        generation_directory: Path | None = None,
    ) -> ModelConfig:
        """Read ``config.json`` (and ``generation_config.json``) of a Hugging Face directory.

        Args:
            directory: with these files.
            architecture: the model's.
            read_config: the fields that only its family knows, from a Hugging Face config.
            hf_overrides: fields of config.json, to be read in place of its own.
            generation_directory: where to read generation_config.json; None: with the others.

        Raises:
            ValueError: if it cannot be read, or describes a model that we do not have.
        """
        from transformers import AutoConfig

        file = Path(directory) / "config.json"
        types = given_layer_types(read_json_object(file) | (hf_overrides or {}))
        try:
            hf = AutoConfig.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False
            )
            hf.update(hf_overrides or {})  # fields that it does not have yet, too
            hf.get_text_config().layer_types = types  # and not those made up before
        except Exception as error:
            raise ValueError(f"{file} cannot be read: {' '.join(str(error).split())}") from error
        generation = read_generation_config(generation_directory or Path(directory))
        return cls.from_hf_config(hf, architecture, read_config, generation)

    @classmethod
    def from_hf_config(
        cls,
        hf,
        architecture: str,
        read_config: Callable[[Any], dict[str, Any]],
        generation: dict[str, Any],
    ) -> ModelConfig:
        """Read a Hugging Face config and the values of a generation_config.json.

        Of a model of pictures or sound these are its language half's; ``read_config`` gets all.

        Raises like ``from_directory``.
        """
        whole = hf
        hf = whole.get_text_config()
        check_sizes(hf)
        eos_ids: set[int] = set()
        for ids in (hf.eos_token_id, generation.get("eos_token_id")):
            # one outside the vocabulary is what a config of another model has left over
            ids = ids if isinstance(ids, list) else [ids]
            eos_ids.update(i for i in ids if is_int(i, 0) and i < hf.vocab_size)
        common = {
            "hf_config": whole,
            "architecture": architecture,
            "vocab_size": hf.vocab_size,
            "hidden_size": hf.hidden_size,
            "num_layers": hf.num_hidden_layers,
            "num_heads": hf.num_attention_heads,
            "num_kv_heads": getattr(hf, "num_key_value_heads", None) or hf.num_attention_heads,
            "head_dim": getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads,
            "max_position_embeddings": hf.max_position_embeddings,
            "tie_word_embeddings": hf.tie_word_embeddings,
            "sliding_windows": (None,) * hf.num_hidden_layers,
            "dtype": _torch_dtype(whole),
            "eos_token_ids": frozenset(eos_ids),
            "default_sampling": sampling_defaults(generation),
        }
        num_heads = common["num_heads"]
        num_kv_heads = common["num_kv_heads"]
        ok = num_heads % num_kv_heads == 0
        allowed = f"a divisor of the {num_heads} attention heads"
        check(ok, "num_key_value_heads in config.json", num_kv_heads, allowed)
        found = cls(**common | read_config(whole))
        is_refused = found.dtype == torch.float16 and not found.has_float16
        return replace(found, dtype=torch.bfloat16) if is_refused else found


def read_architecture(directory: str | Path) -> str:
    """The architecture that the ``config.json`` of a Hugging Face directory names.

    Raises:
        FileNotFoundError: if there is no config.json in it.
        ValueError: if it cannot be read.
    """
    file = Path(directory) / "config.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"model directory {str(directory)!r} has no config.json; a Hugging Face model "
            "directory holds config.json, weights and tokenizer files."
        )
    names = read_json_object(file).get("architectures") or ["(none)"]
    if not isinstance(names, list) or not is_text(names[0]):
        allowed = "a list with an architecture's name"
        raise ValueError(f"{file} cannot be read: architectures must be {allowed}, got {names!r}.")
    return names[0]


def require(hf, **values) -> None:
    """Refuse a Hugging Face config that has another value for one of these; absent ones are fine.

    Raises:
        ValueError: naming the field, its value and the only one that we have.
    """
    for name, only in values.items():
        value = getattr(hf, name, only)
        if value != only:
            raise ValueError(f"{name}={value!r} in config.json is not supported; only {only!r} is.")


def check_sizes(hf: Any, part: str = "") -> None:
    """Raise ``ValueError`` for a size that memory cannot be asked for.

    Args:
        hf: a Hugging Face config.
        part: of a whole config that it is, such as "vision_config."; "": all of it.
    """
    for name, most in _MOST.items():
        value = getattr(hf, name, None)
        ok = value is None or (is_int(value, 1) and value <= most)
        check(ok, f"{part}{name} in config.json", value, f"an integer from 1 to {most}")


def _torch_dtype(hf: Any) -> torch.dtype:
    name = hf.dtype if hasattr(hf, "dtype") else hf.torch_dtype  # before transformers 4.56
    known = isinstance(name, torch.dtype)
    dtype = name if known else getattr(torch, str(name or "float32"), None)
    if dtype not in _DTYPES:
        raise ValueError(
            f"dtype={name!r} in config.json is not supported; float32, float16 and bfloat16 are."
        )
    return dtype
