"""VllmConfig: an engine's configuration in groups, made by ``EngineArgs.create_engine_config``.

Each part of the engine is given the group that it reads. (vLLM: vllm/config/)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from minivllm.config.kv_transfer import KVTransferConfig as KVTransferConfig
from minivllm.config.lora import LoRAConfig
from minivllm.config.multimodal import MultiModalConfig
from minivllm.config.parallel import ParallelConfig
from minivllm.config.pooler import PoolerConfig as PoolerConfig  # for users, as in vLLM
from minivllm.config.speculative import SpeculativeConfig
from minivllm.config.structured_outputs import StructuredOutputsConfig

DTYPES = {"auto": None, "float32": "float32", "float": "float32", "float16": "float16",
          "half": "float16", "bfloat16": "bfloat16"}  # fmt: skip
# kv_cache_dtype: the numbers' type in torch; auto: the model's
KV_CACHE_DTYPES = {"auto": None, "fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn",
                   "fp8_e5m2": "float8_e5m2", "int8_per_token_head": "int8"}  # fmt: skip
DEVICES = ("auto", "cpu", "cuda")
ATTENTION_BACKENDS = ("auto", "paged_torch", "paged_numba", "paged_triton", "reference")
# load_format: which kinds of weight files to look for, in this order
LOAD_FORMATS = {"auto": ("safetensors", "pt"), "safetensors": ("safetensors",), "pt": ("pt",),
                "gguf": (), "dummy": ()}  # fmt: skip


class Limits(NamedTuple):
    """Limits of a sequence and of a step, in tokens; and of sequences that run at once."""

    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of a step, scheduling policy and way of preemption. Sizes are in tokens."""

    max_num_batched_tokens: int = 4096  # the token budget of a step
    max_num_seqs: int = 256  # sequences that run at once
    max_model_len: int = 4096  # the longest sequence, prompt and output
    enable_chunked_prefill: bool = True  # False: what an admitted sequence lacks is never split
    # the most that one sequence computes in a step while there are others; 0 is no limit
    long_prefill_token_threshold: int = 0
    policy: Any = "fcfs"  # a name of POLICIES, or one of your own
    preemption_mode: str | None = None  # "recompute", "swap"; None: swap if there are siblings
    num_speculative_tokens: int = 0  # the most drafts that a sequence has
    # what a draft model needs beside: slots for K and V beyond the scheduled tokens, and room in a
    # step's budget for one more token per sequence
    num_lookahead_tokens: int = 0
    num_drafting_slots: int = 0
    # 0 in a pooling engine: no slot is kept for a token to come, which is sampled and not computed
    num_sampled_tokens_per_step: int = 1
    max_loras: int = 0  # adapters that one step may hold; 0: there are none
    async_scheduling: bool = False  # True: a step is planned while the one before it runs
    # Items such as pictures, in embeddings: the most that one step encodes, and those that are
    # kept. 0: of a text model.
    max_num_encoder_input_tokens: int = 0
    encoder_cache_size: int = 0
    disable_chunked_mm_input: bool = False  # True: no chunk ends within an item that it begins
    disable_hybrid_kv_cache_manager: bool = False  # True: layers with a window keep all tokens


@dataclass(frozen=True)
class CacheConfig:
    """The KV cache: the size of its blocks, and what its number of blocks comes from."""

    block_size: int = 16  # positions per block
    gpu_memory_utilization: float = 0.9  # of a GPU: weights, activations and KV cache together
    kv_cache_memory_bytes: int | None = None  # the KV cache's size, instead of measuring
    num_gpu_blocks_override: int | None = None  # its blocks, the null block included
    swap_space_bytes: int = 0  # host memory for requests that are swapped out
    enable_prefix_caching: bool = True  # reuse full blocks of equal prefixes
    # what layers with a sliding window keep for others to find; see kv/groups/single_type.py
    prefix_cache_retention_interval: int | None = 0
    prefix_match_unit: int | None = None  # tokens that are hashed at once; None: a block's
    cache_dtype: str = "auto"  # a name of KV_CACHE_DTYPES
    kv_cache_manager_cls: Any = None  # a subclass of KVCacheManager of your own


@dataclass(frozen=True)
class LoadConfig:
    """Source and format of the weights."""

    model_directory: Path
    tokenizer_directory: Path | None  # None: token ids in, token ids out
    load_format: str = "auto"
    use_tqdm_on_load: bool = True
    draft_model_directory: Path | None = None


@dataclass(frozen=True)
class DeviceConfig:
    """The device, and the attention backend that reads the KV cache on it."""

    device: Any  # a torch.device
    attention_backend: str = "auto"
    enforce_eager: bool = False  # True: no CUDA graphs; on a CPU the model's plain modules


@dataclass(frozen=True)
class ObservabilityConfig:
    """Traces, metrics and log lines of a running engine."""

    trace: bool = False  # record every state change, for figures
    disable_log_stats: bool = True  # False: a line in the log every few seconds


@dataclass(frozen=True)
class VllmConfig:
    """All groups. ``seed`` and ``max_logprobs`` are for requests that come in."""

    model_config: Any  # a ModelConfig; that room is below this one
    load_config: LoadConfig
    device_config: DeviceConfig
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    cache_config: CacheConfig = field(default_factory=CacheConfig)
    observability_config: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    structured_outputs_config: StructuredOutputsConfig = field(
        default_factory=StructuredOutputsConfig
    )
    speculative_config: SpeculativeConfig | None = None  # None: one token a step
    draft_model_config: Any = None  # a ModelConfig, too
    lora_config: LoRAConfig | None = None  # None: no request has an adapter
    kv_transfer_config: KVTransferConfig | None = None  # None: K and V stay in this engine
    multimodal_config: MultiModalConfig = field(default_factory=MultiModalConfig)
    seed: int = 0  # where requests without a seed of their own get theirs
    max_logprobs: int = 20  # the most best tokens that a request may ask about; -1: all

    def shard(self, rank: int, stage: int = 0) -> VllmConfig:
        """Config of a rank that shares every layer of its stage: of each model it has a part.

        A draft model that cannot be divided is whole on each rank.

        Raises:
            ValueError: if the model cannot be divided.
        """
        size = self.parallel_config.tensor_parallel_size
        draft = self.draft_model_config
        if draft is not None and draft.can_be_shared(size):
            draft = draft.shard(rank, size)
        model = self.model_config.shard(rank, size)
        model = model.stage(stage, self.parallel_config.pipeline_parallel_size)
        return replace(self, model_config=model, draft_model_config=draft)

    @property
    def max_concurrent_batches(self) -> int:
        """Number of plans in flight at most: one for each stage, and one that is being made."""
        stages = self.parallel_config.pipeline_parallel_size
        return stages + self.scheduler_config.async_scheduling

    @property
    def max_in_flight_tokens(self) -> int:
        """Number of tokens that all plans in flight compute, at most."""
        return self.max_concurrent_batches * self.scheduler_config.max_num_batched_tokens
