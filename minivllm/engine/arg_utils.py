"""EngineArgs: all arguments of an engine, with vLLM's names and defaults, validated in one place.

(vLLM: vllm/engine/arg_utils.py)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from minivllm.config import (
    LOAD_FORMATS,
    CacheConfig,
    DeviceConfig,
    Limits,
    LoadConfig,
    ObservabilityConfig,
    SchedulerConfig,
    VllmConfig,
    compat,
)
from minivllm.config.async_scheduling import resolve_async_scheduling
from minivllm.config.kv_transfer import KVTransferConfig, resolve_kv_transfer
from minivllm.config.lora import LoRAConfig, make_lora_config
from minivllm.config.multimodal import make_multimodal_config, parse_limits
from minivllm.config.parallel import ParallelConfig
from minivllm.config.pooler import PoolerConfig
from minivllm.config.speculative import (
    SHORT_NAMES,
    SpeculativeConfig,
    make_speculative_config,
    slots_for_drafts,
)
from minivllm.config.structured_outputs import (
    StructuredOutputsConfig,
    make_structured_outputs_config,
)
from minivllm.engine.arg_checks import check_values
from minivllm.engine.device import resolve_device, resolve_dtype
from minivllm.engine.kv_groups import check_groups
from minivllm.engine.model_files import is_quantized_in_float16, read_model_config
from minivllm.engine.multimodal import encoder_limits
from minivllm.logger import init_logger
from minivllm.models.generation_config import sampling_defaults
from minivllm.models.hub import generation_directory, model_directory, tokenizer_directory
from minivllm.models.loader import load_draft_config
from minivllm.models.model_config import ModelConfig
from minivllm.pooling.runner_type import (
    PoolingRequest,
    resolve_chunks,
    resolve_pooling,
    resolve_texts,
)
from minivllm.quantization import gguf
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.policies import make_policy
from minivllm.utils.platforms import describe_gpu
from minivllm.utils.validation import check, known_names_only
from minivllm.utils.vllm_arguments import takes_vllm_defaults

logger = init_logger(__name__)


@takes_vllm_defaults("EngineArgs")
@known_names_only
@dataclass
class EngineArgs:
    """Arguments of an engine. ``LLM(...)`` takes the same names.

    Sizes are in tokens unless a name says otherwise.

    Raises:
        ValueError: for an unknown name or a value outside its range, naming both.
    """

    model: str | None = None  # a directory, GGUF file, hub's or pulled name; None: the embedded one
    revision: str | None = None  # which version of the hub's model; None: its default
    tokenizer: str | None = None  # a directory or name of the tokenizer's own; None: the model's
    tokenizer_revision: str | None = None  # as for the model
    download_dir: str | None = None  # where downloads are kept; None: the hub's own cache
    load_format: str = "auto"  # "safetensors", "pt", "gguf"; auto: what is there; "dummy": random
    use_tqdm_on_load: bool = True  # a progress bar over the files of a checkpoint
    skip_tokenizer_init: bool = False  # token ids in, token ids out: no tokenizer is loaded
    dtype: str = "auto"  # "auto": as config.json says
    # None: as config.json says; "int4" or "int8_per_channel_weight_only": float weights are rounded
    quantization: str | None = None
    device: str = "auto"  # "auto": a GPU if torch sees one
    attention_backend: str | None = "auto"  # how layers read K and V; see attention/selector.py
    enforce_eager: bool = False  # True: no CUDA graphs; on a CPU the model's plain modules
    seed: int = 0  # where requests without a seed of their own get theirs
    max_logprobs: int = 20  # the most best tokens that a request may ask about; -1: all

    # memory
    block_size: int | None = 16  # positions per KV block
    max_model_len: int | None = None  # prompt + output; None: as config.json says
    # share of a GPU that weights, activations and KV cache may fill; a CPU's KV cache has a stated
    # size, MINIVLLM_CPU_KVCACHE_SPACE
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None  # the KV cache's size, instead of measuring
    num_gpu_blocks_override: int | None = None  # blocks in the pool, the null block included
    swap_space: float = 4  # GiB of host memory for requests that are swapped out
    # K and V in 8 bits: "fp8", "fp8_e5m2", "int8_per_token_head"; "auto": the model's dtype
    kv_cache_dtype: str = "auto"
    # reuse full blocks of equal prefixes; None: yes, unless a pooling model cannot
    enable_prefix_caching: bool | None = None
    # layers with a sliding window keep what the end of a prompt and a known shared prefix need (0),
    # also at every multiple of this, or everything (None)
    prefix_cache_retention_interval: int | None = 0
    prefix_match_unit: int | None = None  # tokens that are hashed at once; None: a block's
    # True: layers with a sliding window keep all tokens; None: only the last ones
    disable_hybrid_kv_cache_manager: bool | None = None

    # scheduling
    # the budget of a step; None: 4096, on a GPU 8192, on a large one 16384, or a whole prompt
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None  # sequences running at once; None: 256, large GPUs 1024
    # False: a prompt is computed in one piece; None: True, unless a pooling model cannot
    enable_chunked_prefill: bool | None = None
    long_prefill_token_threshold: int = 0  # a prompt's share of a step while others wait; 0: all
    scheduling_policy: Any = "fcfs"  # by name, or one of your own
    async_scheduling: bool | None = None  # plan a step while one runs; None: only on a GPU

    # structured outputs
    structured_outputs_config: dict | StructuredOutputsConfig | None = None  # {"backend": "fsm"}
    guided_decoding_backend: str | None = None  # 0.6.6's name for that backend

    # speculative decoding
    # {"method": "ngram", "num_speculative_tokens": 4, ...}, or {"model": a draft model's, ...}
    speculative_config: dict | SpeculativeConfig | None = None
    kv_transfer_config: dict | KVTransferConfig | None = None  # K and V to and from other engines
    spec_method: str | None = None  # short for its method
    spec_model: Any = None  # short for its model
    spec_tokens: int | None = None  # short for its num_speculative_tokens
    speculative_model: Any = None  # 0.6.6's name for its model, or "[ngram]"
    num_speculative_tokens: int | None = None  # 0.6.6's name for the most drafts of a step
    ngram_prompt_lookup_max: int | None = None  # 0.6.6's name for the longest n-gram
    ngram_prompt_lookup_min: int | None = None  # and for the shortest

    # several devices
    tensor_parallel_size: int = 1  # ranks that each hold a part of every layer
    pipeline_parallel_size: int = 1  # stages, each with some of the layers
    data_parallel_size: int = 1  # engines behind one front end
    # "uni", "mp", "together", "ray", or an Executor class; None: "mp" for more than one rank
    distributed_executor_backend: Any = None

    # adapters
    enable_lora: bool = False  # requests may name an adapter
    max_loras: int = 1  # adapters in one step
    max_lora_rank: int = 16  # the largest rank of an adapter
    max_cpu_loras: int | None = None  # adapters kept in host memory; None: max_loras
    lora_dtype: str = "auto"  # of adapters; "auto": the model's
    lora_target_modules: list[str] | None = None  # endings of layers' names; None: all

    preemption_mode: str | None = None  # "recompute", "swap"; None: swap if there are siblings
    kv_cache_manager_cls: type | None = None  # a KVCacheManager of your own; None: that one

    # pooling: vectors out
    runner: str = "auto"  # "generate", "pooling"; "auto": as the architecture's name says
    convert: str = "auto"  # what is put on a decoder for pooling: "embed", "classify" or "none"
    pooler_config: dict | PoolerConfig | None = None  # {"pooling_type": "LAST", ...}
    # 0.6.6's name for these: "generate", "embed", "classify", "score" or "reward"
    task: str = "auto"
    override_pooler_config: dict | PoolerConfig | None = None  # 0.6.6's name for pooler_config
    hf_overrides: dict | None = None  # fields to be read in place of config.json's

    # pictures, sounds and videos in prompts
    # {"image": 2} or image=2: the most of a prompt; of others 999
    limit_mm_per_prompt: dict | str | None = None
    mm_processor_kwargs: dict | None = None  # options of the model's own processor
    media_io_kwargs: dict | None = None  # {"image": {"rgba_background_color": [0, 0, 0]}}
    mm_processor_cache_gb: float = 4  # GiB of processed items that are kept
    interleave_mm_strings: bool = False  # placeholders stay among a message's text parts
    allowed_local_media_path: str = ""  # the directory below which requests may name files
    allowed_media_domains: list[str] | None = None  # hosts from which requests may name pictures
    # embeddings that one step may encode; None: the budget of tokens, or one whole item
    max_num_encoder_input_tokens: int | None = None
    encoder_cache_size: int | None = None  # embeddings that are kept; None: as many
    disable_chunked_mm_input: bool = False  # True: no chunk ends within an item

    # requests that say nothing: "auto": the model's generation_config.json has their defaults;
    # "vllm": vLLM's own
    generation_config: str = "auto"  # "auto", "vllm", or a directory with a generation_config.json
    override_generation_config: dict | None = None  # more of it, or other values

    # what you see
    trace: bool = False  # record every state change, for figures; online the last 1,000 steps
    disable_log_stats: bool = True  # False: a line in the log every few seconds

    # accepted so that vLLM scripts run; see ENGINE_DEFAULTS_ONLY
    tokenizer_mode: str = "auto"
    trust_remote_code: bool = False  # accepted: no code that comes with a model is ever run
    use_v2_block_manager: bool = True
    cpu_offload_gb: float = 0

    def __post_init__(self):
        check_values(self)
        structured_outputs = compat.structured_outputs_config(self)
        self.structured_outputs_config = make_structured_outputs_config(structured_outputs)
        self.speculative_config = make_speculative_config(
            compat.speculative_config(self), {name: getattr(self, name) for name in SHORT_NAMES}
        )
        self.pooler_config = compat.pooler_config(self)
        # they are in these three now
        for name in (*SHORT_NAMES, *compat.SPECULATIVE_NAMES, "guided_decoding_backend",
                     "override_pooler_config"):  # fmt: skip
            setattr(self, name, None)
        self.limit_mm_per_prompt = parse_limits(self.limit_mm_per_prompt) or None
        for name in ("mm_processor_kwargs", "media_io_kwargs", "allowed_media_domains"):
            value = getattr(self, name)
            if isinstance(value, (dict, list)) and not value:
                setattr(self, name, None)
        make_multimodal_config(self)  # raises for a value that cannot be
        self._lora_config()
        self._pooling_request()
        self._parallel_config().check()
        compat.check_defaults_only(self, compat.ENGINE_DEFAULTS_ONLY)

    def _check_load_format(self, directory: Path) -> None:
        is_file = gguf.is_gguf(directory)
        known = ["auto", "gguf", "dummy"] if is_file else [n for n in LOAD_FORMATS if n != "gguf"]
        allowed = f"one of {', '.join(known)} for a {'GGUF file' if is_file else 'directory'}"
        check(self.load_format in known, "load_format", self.load_format, allowed)

    def _with_defaults_of_requests(self, config: ModelConfig) -> ModelConfig:
        """The config with sampling defaults as ``override_generation_config`` has them."""
        own = {} if self.generation_config == "vllm" else config.default_sampling
        given = sampling_defaults(self.override_generation_config or {})
        SamplingParams(**given)  # raises for a value that no request could have
        return replace(config, default_sampling=own | given)

    def _pooling_request(self) -> PoolingRequest:
        config: Any = self.pooler_config
        request = PoolingRequest(self.task, self.runner, self.convert, pooler_config=config)
        request.check()
        return request

    def _parallel_config(self) -> ParallelConfig:
        return ParallelConfig(
            tensor_parallel_size=self.tensor_parallel_size,
            pipeline_parallel_size=self.pipeline_parallel_size,
            distributed_executor_backend=self.distributed_executor_backend,
            data_parallel_size=self.data_parallel_size,
        )

    def _lora_config(self) -> LoRAConfig | None:
        return make_lora_config(
            self.enable_lora is True,
            max_loras=self.max_loras,
            max_lora_rank=self.max_lora_rank,
            max_cpu_loras=self.max_cpu_loras,
            lora_dtype=self.lora_dtype,
            target_modules=self.lora_target_modules,
        )

    def resolve_limits(
        self, model_max_len: int, gpu: tuple[str, int] | None = None, chunks: bool | None = None
    ) -> Limits:
        """Limits of a step and of a sequence: those given, else vLLM's defaults for ``LLM``.

        Args:
            model_max_len: how many positions the model knows.
            gpu: name and bytes of memory of the GPU; None on a CPU.
            chunks: whether prompts come in chunks; None: as ``enable_chunked_prefill`` says.

        Raises:
            ValueError: if a limit asks for more than the model or the other limits can give.
        """
        max_len = self.max_model_len or model_max_len
        allowed = f"at most the {model_max_len} tokens that this model's files allow"
        check(max_len <= model_max_len, "max_model_len", max_len, allowed)
        budget = 4096
        max_num_seqs = 256
        if gpu is not None:  # more on large ones, but for the A100 (vLLM: get_batch_defaults)
            large = gpu[1] >= 70 * 2**30 and "a100" not in gpu[0].lower()
            budget, max_num_seqs = (16384, 1024) if large else (8192, 256)
        if chunks is None:
            chunks = self.enable_chunked_prefill is not False
        if not chunks:
            budget = max(budget, max_len)
        budget = self.max_num_batched_tokens or budget
        limits = Limits(max_len, budget, self.max_num_seqs or max_num_seqs)
        allowed = f"at least max_model_len={max_len} when enable_chunked_prefill=False, since a "
        allowed += "prompt is then never split"
        check(chunks or budget >= max_len, "max_num_batched_tokens", budget, allowed)
        return limits

    def create_engine_config(self) -> VllmConfig:
        """Make the engine's VllmConfig: find the model, look at the device, settle every limit.

        Raises:
            FileNotFoundError: if the model cannot be had.
            ValueError: if there is no such device, or the limits contradict each other or the
                model.
        """
        # 1. The model: what its files say, and what these arguments change of it.
        directory = model_directory(self)
        device = resolve_device(self.device)
        self._check_load_format(directory)
        model_config = read_model_config(
            directory, self.quantization, self.hf_overrides, generation_directory(self)
        )
        model_config = self._with_defaults_of_requests(model_config)
        model_config = resolve_pooling(model_config, directory, self._pooling_request())
        tokenizer = None if self.skip_tokenizer_init else tokenizer_directory(self, directory)
        model_config = resolve_texts(model_config, directory, tokenizer or directory)
        if self.trust_remote_code:
            message = "trust_remote_code=True: %s is built in; a model's own code is never run."
            logger.info(message, model_config.architecture)
        dtype = resolve_dtype(self.dtype, model_config.dtype, device)
        on_cpu = self.dtype == "auto" and device.type == "cpu"
        if on_cpu and is_quantized_in_float16(directory, model_config):
            dtype = torch.float32  # vLLM's is that of the scales; a CPU's fast path has no float16
        model_config = replace(model_config, dtype=dtype)
        # 2. What works on its outputs: drafts and grammars, which pooling has no use for.
        speculative_config = make_speculative_config(self.speculative_config, {})
        grammars = make_structured_outputs_config(self.structured_outputs_config)
        if model_config.runner_type == "pooling":
            for name, value, ok in (
                ("speculative_config", speculative_config, speculative_config is None),
                ("structured_outputs_config", grammars, grammars == StructuredOutputsConfig()),
            ):
                check(ok, name, value, "None for a pooling model, which samples no token")
        draft_directory, draft_config = load_draft_config(
            self, speculative_config, model_config, read_model_config
        )
        # 3. Limits and the devices: they depend on both.
        chunks, caching = resolve_chunks(
            model_config, self.enable_chunked_prefill, self.enable_prefix_caching
        )
        gpu = describe_gpu(device)
        parallel_config = self._parallel_config()
        parallel_config.check_devices(None if gpu is None else torch.cuda.device_count())
        model_config.shard(0, self.tensor_parallel_size)  # raises if it cannot be divided
        model_config.stage(0, self.pipeline_parallel_size)  # likewise
        limits = self.resolve_limits(model_config.max_model_len, gpu, chunks)
        lora_config = self._lora_config()
        if lora_config is not None:
            resolve_dtype(self.lora_dtype, dtype, device)  # raises if the device has it not
        ok = self.pipeline_parallel_size == 1 or (draft_config is None and lora_config is None)
        allowed = "1 with a draft model or adapters, which have no stages yet"
        check(ok, "pipeline_parallel_size", self.pipeline_parallel_size, allowed)
        kv_transfer_config = resolve_kv_transfer(
            self.kv_transfer_config,
            async_scheduling=self.async_scheduling,
            has_draft_model=draft_config is not None,
            num_stages=self.pipeline_parallel_size,
        )
        async_scheduling = resolve_async_scheduling(
            False if kv_transfer_config is not None else self.async_scheduling,
            is_on_cpu=device.type == "cpu",
            runner_type=model_config.runner_type,
            speculative_config=speculative_config,
            parallel_config=parallel_config,
        )
        multimodal_config = make_multimodal_config(self)
        encoder = encoder_limits(
            self,
            model_config,
            directory,
            multimodal_config=multimodal_config,
            max_num_batched_tokens=limits.max_num_batched_tokens,
        )
        config = VllmConfig(
            model_config=model_config,
            load_config=LoadConfig(
                model_directory=directory,
                tokenizer_directory=tokenizer,
                load_format=self.load_format,
                use_tqdm_on_load=self.use_tqdm_on_load,
                draft_model_directory=draft_directory,
            ),
            device_config=DeviceConfig(
                device, self.attention_backend or "auto", self.enforce_eager
            ),
            scheduler_config=SchedulerConfig(
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_num_seqs=limits.max_num_seqs,
                max_model_len=limits.max_model_len,
                enable_chunked_prefill=chunks,
                long_prefill_token_threshold=self.long_prefill_token_threshold,
                policy=make_policy(self.scheduling_policy),
                preemption_mode=self.preemption_mode,
                num_sampled_tokens_per_step=0 if model_config.runner_type == "pooling" else 1,
                max_loras=0 if lora_config is None else lora_config.max_loras,
                async_scheduling=async_scheduling,
                disable_chunked_mm_input=self.disable_chunked_mm_input,
                disable_hybrid_kv_cache_manager=self.disable_hybrid_kv_cache_manager is True,
                **encoder,
                **slots_for_drafts(
                    speculative_config, limits.max_model_len, limits.max_num_batched_tokens
                ),
            ),
            cache_config=CacheConfig(
                block_size=self.block_size or 16,
                gpu_memory_utilization=self.gpu_memory_utilization,
                kv_cache_memory_bytes=self.kv_cache_memory_bytes,
                num_gpu_blocks_override=self.num_gpu_blocks_override,
                swap_space_bytes=int(self.swap_space * 2**30),
                enable_prefix_caching=caching,
                prefix_cache_retention_interval=self.prefix_cache_retention_interval,
                prefix_match_unit=self.prefix_match_unit,
                cache_dtype=self.kv_cache_dtype,
                kv_cache_manager_cls=self.kv_cache_manager_cls,
            ),
            observability_config=ObservabilityConfig(self.trace, self.disable_log_stats),
            parallel_config=parallel_config,
            structured_outputs_config=grammars,
            speculative_config=speculative_config,
            draft_model_config=draft_config,
            lora_config=lora_config,
            kv_transfer_config=kv_transfer_config,
            multimodal_config=multimodal_config,
            seed=self.seed,
            max_logprobs=self.max_logprobs,
        )
        check_groups(config)
        return config


@takes_vllm_defaults("EngineArgs")
@known_names_only
@dataclass
class AsyncEngineArgs(EngineArgs):
    """Arguments of an ``AsyncLLM``: an engine that runs in a loop of its own."""

    disable_log_stats: bool = False  # online the log is read
    enable_log_requests: bool = False  # a line in the log for every request
    engine_process: bool = False  # True: the engine runs in a process of its own, not a thread
