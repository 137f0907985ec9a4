"""Worker: owns the device. Loads the model, measures what memory is left, allocates the KV cache.

(vLLM: vllm/v1/worker/gpu_worker.py, cpu_worker.py)
(notebook 13)
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from traceback import clear_frames
from typing import Any

import torch

from minivllm import envs
from minivllm.attention.kv_cache import KVCache
from minivllm.attention.quantized_kv import is_float8
from minivllm.attention.selector import make_backend
from minivllm.config import VllmConfig
from minivllm.config.lora import LoRAConfig
from minivllm.cpu import apply as cpu
from minivllm.cpu.linear import Timings, export_timings, import_timings
from minivllm.distributed.group import Alone, ParallelState
from minivllm.kv.kv_cache_config import KVCacheConfig
from minivllm.kv.kv_cache_spec import (
    DRAFT,
    KVCacheGroupSpec,
    KVCacheSpec,
    bytes_per_block,
    get_kv_cache_groups,
)
from minivllm.kv.memory_profile import MemoryProfile, format_bytes, host_memory_gib
from minivllm.logger import init_logger
from minivllm.lora import apply as lora
from minivllm.lora.request import LoadedLoRA, LoRARequest
from minivllm.models.decoder import DecoderModel
from minivllm.models.loader import load_encoder, load_model
from minivllm.models.model_config import ModelConfig
from minivllm.models.multimodal import MultiModalEncoder
from minivllm.pooling.make_pooler import make_pooler
from minivllm.pooling_params import PoolingParams
from minivllm.quantization import gguf, w4a16
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.utils.math_utils import cdiv
from minivllm.utils.platforms import describe_gpu
from minivllm.worker.cuda_graph_runner import CUDAGraphRecorder, capture_sizes
from minivllm.worker.draft_model import DraftModelProposer
from minivllm.worker.kv_cache import kv_cache_specs, make_kv_cache
from minivllm.worker.kv_transfer import KVTransfer, make_kv_transfer
from minivllm.worker.lora_manager import WorkerLoRAManager
from minivllm.worker.model_runner import ModelRunner
from minivllm.worker.pipeline_stage import make_runner
from minivllm.worker.profiling import full_step, largest_items, peak_bytes

logger = init_logger(__name__)

_TOUCHED = 2**28  # bytes of all ranks' KV caches on a CPU that have memory from the beginning


class Worker:
    """One device with a model on it. Its methods are called in the order in which they stand here.

    The config says what to load, where, and within which limits; the state, which part of a model
    that several ranks share. Ranks on GPUs have one each, or take turns in one process.
    """

    def __init__(self, config: VllmConfig, parallel_state: ParallelState | None = None):
        self.parallel_state = parallel_state or ParallelState()
        self.whole_config = config
        self.config = config.shard(self.parallel_state.tp.rank, self.parallel_state.pp.rank)
        self.model_config: ModelConfig = self.config.model_config
        self.draft_config: ModelConfig | None = self.config.draft_model_config
        self.draft_model: DecoderModel | None = None
        self.encoder: MultiModalEncoder | None = None
        self.lora_manager: WorkerLoRAManager | None = None
        self.device = config.device_config.device
        self.ranks_here = 1  # on this device
        if self.device.type == "cuda" and config.parallel_config.world_size > 1:
            num_gpus = torch.cuda.device_count()
            self.device = torch.device("cuda", self.parallel_state.rank % num_gpus)
            if config.parallel_config.backend == "together":
                self.ranks_here = cdiv(config.parallel_config.world_size, num_gpus)
        self.block_size = config.cache_config.block_size
        self.total: float = host_memory_gib() * 2**30  # of the device
        self._peak_activations: int | None = None  # what a GPU was measured to need
        self._overhead = 0
        self._has_failed = False  # the last step, and none since has begun anew
        self._profile: MemoryProfile | None = None
        self.kv_transfer: KVTransfer | None = None  # the worker's side of a KV connector

    def init_device(self) -> None:
        """Choose the attention backend, and measure free memory.

        Raises:
            ValueError: if the backend cannot run here, or less is free than is asked for.
        """
        self.attention = make_backend(self.config.device_config.attention_backend, self.device)
        if self.device.type != "cpu":
            if self.device.index is not None:  # Triton launches on the current one
                torch.cuda.set_device(self.device)
            self._look_at_gpu()

    def _look_at_gpu(self) -> None:
        cache = self.config.cache_config
        self.free_at_start, self.total = torch.cuda.mem_get_info(self.device)
        self.wanted = int(self.total * cache.gpu_memory_utilization)
        stated = cache.num_gpu_blocks_override or cache.kv_cache_memory_bytes
        if self.free_at_start < self.wanted and not stated:
            raise ValueError(
                f"Free memory on device {self.device} ({self.free_at_start / 2**30:.2f}/"
                f"{self.total / 2**30:.2f} GiB) on startup is less than desired GPU memory "
                f"utilization ({cache.gpu_memory_utilization}, {self.wanted / 2**30:.2f} GiB). "
                "Decrease GPU memory utilization or reduce GPU memory used by other processes."
            )

    def load_model(self, timings: Timings | None = None) -> Timings:
        """Build the model and read its weights.

        Args:
            timings: of a CPU's products, as other ranks have measured them.

        Returns:
            All that are known now; on a GPU none.

        Raises:
            ValueError: if they do not fit.
        """
        if timings and self.device.type == "cpu":
            import_timings(timings)
        whole = self.whole_config
        load = self.config.load_config
        with self._out_of_memory_explained("the weights"):
            self.model = self._load(load.model_directory, whole.model_config, whole.lora_config)
            if whole.model_config.is_multimodal:
                self.encoder = self._load_encoder(load.model_directory, whole.model_config)
            if whole.draft_model_config is not None and load.draft_model_directory is not None:
                self.draft_model = self._load(load.draft_model_directory, whole.draft_model_config)
        return export_timings() if self.device.type == "cpu" else {}

    def _load(
        self, directory: Path, config: ModelConfig, lora_config: LoRAConfig | None = None
    ) -> DecoderModel:
        load = self.config.load_config
        parallel = self.parallel_state
        # a draft model whose heads cannot be divided: each rank has the whole
        group = parallel.tp if config.can_be_shared(parallel.tp.size) else Alone()
        model = load_model(
            directory,
            config,
            dtype=config.dtype,
            device=self.device,
            load_format=load.load_format,
            use_tqdm=load.use_tqdm_on_load and parallel.rank == 0,
            weights=gguf.weights_iterator(directory, config) if gguf.is_gguf(directory) else None,
            pooler=make_pooler(config, directory),
            group=group,
            stages=parallel.pp,
        )
        if self.device.type == "cuda" and find_spec("triton") is not None:
            w4a16.apply(model)
        if lora_config is not None:
            self.lora_manager = WorkerLoRAManager(lora.apply(model, lora_config))
        if self.device.type == "cpu":
            if self.config.device_config.enforce_eager:
                logger.info("Using plain modules: enforce_eager=True.")
            else:
                cpu.apply(model, self.attention)
        return model

    def _load_encoder(self, directory: Path, config: ModelConfig) -> MultiModalEncoder:
        """Load the towers; each rank has all of them."""
        load_format = self.config.load_config.load_format
        encoder = load_encoder(directory, config, config.dtype, self.device, load_format)
        if self.device.type == "cpu" and not self.config.device_config.enforce_eager:
            cpu.choose_linear_methods(encoder)
        return encoder

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """The KVCacheSpec of each layer that this rank has, by name; a draft model's come last."""
        cache = self.config.cache_config
        keeps_all = self.config.scheduler_config.disable_hybrid_kv_cache_manager
        specs = kv_cache_specs(self.model_config, cache, keeps_all=keeps_all)
        if self.draft_config is not None:
            specs |= kv_cache_specs(self.draft_config, cache, prefix=DRAFT, keeps_all=True)
        return specs

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache: on a GPU what weights and a full step leave, on a CPU as stated.

        Raises:
            ValueError: if a full step does not fit.
        """
        return envs.cpu_kvcache_bytes() if self.device.type == "cpu" else self._measure_gpu()

    def _measure_gpu(self) -> int:
        with self._out_of_memory_explained("weights and a full step"):
            self._peak_activations = self._activations()
        torch.cuda.empty_cache()
        used = self.free_at_start - torch.cuda.mem_get_info(self.device)[0]
        self._overhead = max(0, used - self._weight_bytes())
        left = self.wanted - used - self._peak_activations
        return left // self.ranks_here

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the KV cache, on the device and on the host, and make the model runner."""
        self.num_blocks = kv_cache_config.num_blocks
        self.bytes_per_block = bytes_per_block(kv_cache_config.groups, self.get_kv_cache_spec())
        cache_dtype = self.config.cache_config.cache_dtype
        is_scaled = is_float8(self.model_config.kv_cache_dtype(cache_dtype))
        if is_scaled and not (self.model.kv_scales or self.model_config.is_encoder_only):
            logger.warning(
                "Using KV cache scaling factor 1.0 for %s. If this is unintended, verify that "
                "k/v_scale scaling factors are properly set in the checkpoint.", cache_dtype,
            )  # fmt: skip
        with self._out_of_memory_explained("weights and the KV cache"):
            self.model_runner = self._runner(kv_cache_config)
        self.kv_transfer = make_kv_transfer(
            self.whole_config, self.parallel_state.tp.rank, self.model_runner.kv_cache
        )
        if self.device.type != "cpu":
            self.profile_memory()
        self._log_room(kv_cache_config)

    def _log_room(self, kv_cache_config: KVCacheConfig) -> None:
        """Log how many tokens there is room for."""
        limits = self.config.scheduler_config
        max_model_len = limits.max_model_len
        if self.model_config.is_encoder_only:  # its one block is never written
            logger.info(
                "No KV cache: an encoder computes a text in one step; a step has up to %d tokens "
                "of up to %d texts.", limits.max_num_batched_tokens, limits.max_num_seqs,
            )  # fmt: skip
            return
        num_host_blocks = kv_cache_config.num_host_blocks
        in_flight = self.config.max_in_flight_tokens
        concurrency = kv_cache_config.max_concurrency(max_model_len, in_flight)
        logger.info("# GPU blocks: %d, # CPU blocks: %d", self.num_blocks, num_host_blocks)
        logger.info(
            "Maximum concurrency for %d tokens per request: %.2fx", max_model_len, concurrency
        )

    def compile_or_warm_up_model(self) -> None:
        """Capture CUDA graphs of decode steps, or log why not."""
        if self.device.type == "cpu":
            self.model_runner.kv_cache.touch(_TOUCHED // self.config.parallel_config.world_size)
            logger.debug("A CPU has no CUDA graphs: every step runs eagerly.")
            return
        cache_dtype = self.config.cache_config.cache_dtype
        if cache_dtype != "auto":
            logger.info("No CUDA graphs: blocks in %s are looked up and widened.", cache_dtype)
            return
        if self.model_config.runner_type == "pooling":
            logger.info("No CUDA graphs: a pooling model has no decode steps.")
            return
        if self.config.device_config.enforce_eager:
            logger.info("No CUDA graphs: enforce_eager=True.")
            return
        if self.parallel_state.pp.size > 1:
            logger.info("No CUDA graphs: stages receive and send, which is not recorded.")
            return
        if self.config.parallel_config.backend == "together" and self.parallel_state.tp.size > 1:
            logger.info("No CUDA graphs: ranks take turns, which is not recorded.")
            return
        if not self.attention.supports_cuda_graphs:
            name = self.attention.name
            logger.info(
                "No CUDA graphs: %s looks into its inputs, and looks are not recorded.", name
            )
            return
        limits = self.config.scheduler_config
        start = time.perf_counter()
        free_before, _ = torch.cuda.mem_get_info(self.device)
        sizes = capture_sizes(min(limits.max_num_seqs, limits.max_num_batched_tokens))
        with self._out_of_memory_explained("weights, KV cache and CUDA graphs"):
            self.model_runner.capture_decodes(sizes, limits.max_model_len, CUDAGraphRecorder())
        torch.cuda.synchronize(self.device)
        taken = free_before - torch.cuda.mem_get_info(self.device)[0]
        logger.info(
            "Graph capturing finished in %.0f secs, took %s: %s",
            time.perf_counter() - start,
            format_bytes(taken),
            f"{len(sizes)} batch sizes from {sizes[0]} to {sizes[-1]}",
        )

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute one step.

        Raises:
            RuntimeError: if the GPU has not enough memory for it; or if the step before it has
                failed, and this one was planned behind it: what it goes on from is not there. The
                next plan that says ``reset`` is computed. (A stage computes it all the same: the
                next one waits for what it sends.)
        """
        is_stage = self.parallel_state.pp.size > 1
        if self._has_failed and not scheduler_output.reset and not is_stage:
            raise RuntimeError("the step before this one has failed.")
        self._has_failed = True
        try:
            if self.kv_transfer is None:
                output = self.model_runner.execute_model(scheduler_output)
            else:
                output = self.kv_transfer.execute_model(self.model_runner, scheduler_output)
        except torch.OutOfMemoryError as error:
            clear_frames(error.__traceback__)  # what the step has made is let go
            torch.cuda.empty_cache()
            raise RuntimeError(
                f"a step of {sum(scheduler_output.num_scheduled_tokens.values())} tokens does not "
                f"fit into the memory of {self.device}; lower gpu_memory_utilization, "
                "max_num_batched_tokens or max_num_seqs, or end what else uses the GPU."
            ) from error
        self._has_failed = False
        return output

    def check_params(self, params: Any) -> None:
        """No-op. Used to test that the arguments can be unpickled by this rank."""

    def add_lora(self, lora_request: LoRARequest) -> LoadedLoRA:
        """Read an adapter into host memory: see ``WorkerLoRAManager.add_lora``."""
        assert self.lora_manager is not None, "LoRA is enabled"
        return self.lora_manager.add_lora(lora_request)

    def remove_lora(self, lora: LoadedLoRA) -> None:
        """Drop an adapter from host memory."""
        assert self.lora_manager is not None, "LoRA is enabled"
        self.lora_manager.remove_lora(lora)

    def profile_memory(self) -> MemoryProfile:
        """The MemoryProfile of the device. Measured on the first call; the table is logged."""
        if self._profile is None:
            if self._peak_activations is None:
                self._peak_activations = self._activations()
            limits = self.config.scheduler_config
            self._profile = MemoryProfile(
                device=(describe_gpu(self.device) or ("cpu",))[0],
                total=self.total,
                weights=self._weight_bytes(),
                activations=self._peak_activations,
                overhead=self._overhead,
                kv_cache=self.num_blocks * self.bytes_per_block,
                num_blocks=self.num_blocks,
                block_size=self.block_size,
                cache_dtype=self.config.cache_config.cache_dtype,
                step_tokens=limits.max_num_batched_tokens,
                step_seqs=min(limits.max_num_batched_tokens, limits.max_num_seqs),
            )
            logger.info("%s", self._profile)
        return self._profile

    def _runner(self, kv_cache_config: KVCacheConfig) -> ModelRunner:
        groups = kv_cache_config.groups
        num_host_blocks = kv_cache_config.num_host_blocks + 1  # its null block
        kv_cache = self._kv_cache(groups, kv_cache_config.num_blocks, self.device)
        draft_model = None
        speculative = self.config.speculative_config
        if self.draft_model is not None and kv_cache.draft is not None and speculative is not None:
            draft_model = DraftModelProposer(
                speculative,
                self.draft_model,
                kv_cache.draft,
                block_size=self.block_size,
                max_model_len=self.config.scheduler_config.max_model_len,
                attention=self.attention,
            )
        return make_runner(
            self.parallel_state.pp,
            model=self.model,
            encoder=self.encoder,
            kv_cache=kv_cache,
            host_kv_cache=self._kv_cache(groups, num_host_blocks, torch.device("cpu")),
            block_size=self.block_size,
            attention=self.attention,
            draft_model=draft_model,
            lora_manager=self.lora_manager,
        )

    def _kv_cache(
        self, groups: Sequence[KVCacheGroupSpec], num_blocks: int, device: torch.device
    ) -> KVCache:
        """Make a KV cache: layers of the model and of its draft, behind the same block ids."""
        cache = self.config.cache_config
        draft = None
        if self.draft_config is not None and self.draft_model is not None:
            draft = make_kv_cache(
                self.draft_config,
                cache,
                groups,
                num_blocks=num_blocks,
                device=device,
                kv_scales=self.draft_model.kv_scales,
                prefix=DRAFT,
            )
        return make_kv_cache(
            self.model_config,
            cache,
            groups,
            num_blocks=num_blocks,
            device=device,
            kv_scales=self.model.kv_scales,
            draft=draft,
        )

    def _activations(self) -> int:
        """Bytes of activations: the peak of a full step, run on a KV cache of one block.

        The layers run as modules: their tensors are counted, a compiled layer's arrays are not.
        """
        limits = self.config.scheduler_config
        groups = get_kv_cache_groups([self.get_kv_cache_spec()])
        runner = self._runner(KVCacheConfig(num_blocks=1, num_host_blocks=0, groups=groups))
        pools = self.model_config.runner_type == "pooling"
        step = full_step(
            max_tokens=limits.max_num_batched_tokens,
            max_seqs=limits.max_num_seqs,
            max_model_len=limits.max_model_len,
            block_size=self.block_size,
            pooling_params=PoolingParams().completed(self.model_config) if pools else None,
            num_groups=runner.kv_cache.num_groups,
            mm_features=largest_items(self.encoder, limits),
        )
        with cpu.layers_as_modules(self.model):
            return peak_bytes(self.device, lambda: runner.execute_model(step))

    def _weight_bytes(self) -> int:
        parts = self.model, self.draft_model, self.encoder
        models = [model for model in parts if model is not None]
        slots = 0 if self.lora_manager is None else self.lora_manager.model.nbytes
        return slots + sum(p.nbytes for model in models for p in model.parameters())

    @contextmanager
    def _out_of_memory_explained(self, what: str) -> Iterator[None]:
        """Let memory that does not suffice be one sentence, and none of it be kept."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            clear_frames(error.__traceback__)
            for name in ("model", "draft_model", "encoder", "model_runner"):
                vars(self).pop(name, None)
            gc.collect()
            torch.cuda.empty_cache()
            raise ValueError(
                f"{what} do not fit into the GPU's {format_bytes(self.free_at_start)} of free "
                "memory; lower max_num_batched_tokens or max_num_seqs, choose dtype='bfloat16', or "
                "a smaller model."
            ) from error
