"""Worker: owns the device. Loads the model, decides how many blocks fit, allocates them.

(vLLM: vllm/v1/worker/gpu_worker.py, cpu_worker.py)
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from minivllm import envs
from minivllm.attention.kv_cache import KVCache
from minivllm.attention.selector import make_backend
from minivllm.config import EngineArgs, Limits, host_memory_gib
from minivllm.kv.block_table import cdiv
from minivllm.kv.memory import MemoryProfile, format_bytes
from minivllm.logger import init_logger
from minivllm.models.loader import load_model
from minivllm.models.model_config import ModelConfig
from minivllm.worker.allocator import keep_freed_memory
from minivllm.worker.cuda_graph_runner import CUDAGraphRecorder, capture_sizes
from minivllm.worker.model_runner import ModelRunner
from minivllm.worker.profiling import full_step, peak_bytes

logger = init_logger(__name__)

_DTYPES = {"half": torch.float16, "float": torch.float32}


def pick_device(name: str) -> torch.device:
    """The device that ``EngineArgs.device`` means.

    Raises:
        ValueError: if there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda', but torch sees no GPU here; use 'cpu' or 'auto'.")
    return torch.device(name)


def describe_gpu(device: torch.device) -> tuple[str, int] | None:
    """Name and bytes of memory of a GPU; None for a CPU."""
    if device.type == "cpu":
        return None
    properties = torch.cuda.get_device_properties(device)
    return properties.name, properties.total_memory


class Worker:
    """One device with a model on it.

    Args:
        args: validated engine arguments.
        directory: the model's Hugging Face directory.
        config: what its config.json says.
        limits: how long a sequence may be and how much a step may hold.
        device: where all of it goes.

    Raises:
        ValueError: if the attention backend cannot run here, or memory is too small for the
            weights or for one sequence of full length.
    """

    def __init__(
        self,
        args: EngineArgs,
        directory: Path,
        config: ModelConfig,
        limits: Limits,
        device: torch.device,
    ):
        self.args, self.config, self.limits, self.device = args, config, limits, device
        self.attention = make_backend(args.attention_backend, device)
        self.dtype = config.dtype
        if args.dtype != "auto":
            self.dtype = _DTYPES.get(args.dtype) or getattr(torch, args.dtype)
        self.block_bytes = config.kv_bytes_per_token(self.dtype) * args.block_size
        self._profile: MemoryProfile | None = None
        if device.type == "cpu":  # a stated size: a cache too small is refused before loading
            keep_freed_memory()
            self.num_blocks = self._num_blocks(envs.cpu_kvcache_bytes())
            self.model = self._load(directory)
        else:
            self.num_blocks = self._measure_gpu(directory)
        # More host blocks than all running sequences could fill are of no use to anyone.
        most = limits.max_num_seqs * cdiv(limits.max_model_len, args.block_size)
        self.num_host_blocks = min(int(args.swap_space * 2**30) // self.block_bytes, most)
        self.model_runner = self._runner(self.num_blocks, self.num_host_blocks + 1)
        self._log_size()
        self._capture_decodes()

    def profile_memory(self) -> MemoryProfile:
        """Where the device's memory goes. Measures on the first call, and logs the table."""
        if self._profile is None:
            total = host_memory_gib() * 2**30
            self._profile = self._make_profile(self.num_blocks, total, self._activations())
            logger.info("%s", self._profile)
        return self._profile

    def _load(self, directory: Path) -> torch.nn.Module:
        args = self.args
        model = load_model(
            directory, self.config, self.dtype, self.device, args.load_format, args.use_tqdm_on_load
        )
        model.pack_weights()
        return model

    def _runner(self, num_blocks: int, num_host_blocks: int) -> ModelRunner:
        device, host = (
            KVCache(
                self.config.num_layers,
                n,
                self.args.block_size,
                self.config.num_kv_heads,
                self.config.head_dim,
                self.dtype,
                where,
            )
            for n, where in ((num_blocks, self.device), (num_host_blocks, torch.device("cpu")))
        )
        return ModelRunner(self.model, device, host, self.args.block_size, self.attention)

    def _capture_decodes(self) -> None:
        """Let decode steps be CUDA graphs, or say in the log why they are not."""
        if self.device.type == "cpu":
            logger.debug("A CPU has no CUDA graphs: every step runs eagerly.")
            return
        if self.args.enforce_eager:
            logger.info("No CUDA graphs: enforce_eager=True.")
            return
        if not self.attention.supports_cuda_graphs:
            name = self.attention.name
            logger.info(
                "No CUDA graphs: %s looks into its inputs, and looks are not recorded.", name
            )
            return
        limits, start = self.limits, time.perf_counter()
        free_before, _ = torch.cuda.mem_get_info(self.device)
        sizes = capture_sizes(min(limits.max_num_seqs, limits.max_num_batched_tokens))
        self.model_runner.capture_decodes(sizes, limits.max_model_len, CUDAGraphRecorder())
        torch.cuda.synchronize(self.device)
        taken = free_before - torch.cuda.mem_get_info(self.device)[0]
        logger.info(
            "Graph capturing finished in %.0f secs, took %s: %d batch sizes from %d to %d",
            time.perf_counter() - start, format_bytes(taken), len(sizes), sizes[0], sizes[-1],
        )  # fmt: skip

    def _activations(self) -> int:
        """The peak of a full step beside weights and KV cache, run on a cache of one block."""
        limits = self.limits
        runner = self._runner(1, 1)
        scheduler_output = full_step(
            limits.max_num_batched_tokens,
            limits.max_num_seqs,
            limits.max_model_len,
            self.args.block_size,
        )
        return peak_bytes(self.device, lambda: runner.execute_model(scheduler_output))

    def _measure_gpu(self, directory: Path) -> int:
        """Load, run a full step, and give K and V what is left: the number of blocks.

        (vLLM: ``determine_available_memory`` in vllm/v1/worker/gpu_worker.py)
        """
        share = self.args.gpu_memory_utilization
        free, total = torch.cuda.mem_get_info(self.device)
        wanted = int(total * share)
        stated = self.args.num_gpu_blocks_override or self.args.kv_cache_memory_bytes
        if free < wanted and not stated:
            raise ValueError(
                f"gpu_memory_utilization={share} asks for {format_bytes(wanted)} of the GPU's "
                f"{format_bytes(total)}, but only {format_bytes(free)} are free; lower it, or end "
                "what else uses the GPU."
            )
        try:
            self.model = self._load(directory)
            activations = self._activations()
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"weights and a full step do not fit into the GPU's {format_bytes(free)} of free "
                "memory; lower max_num_batched_tokens or max_num_seqs, choose dtype='bfloat16', or "
                "a smaller model."
            ) from error
        torch.cuda.empty_cache()
        used = free - torch.cuda.mem_get_info(self.device)[0]
        overhead = max(0, used - self._weight_bytes())
        num_blocks = self._num_blocks(wanted - used - activations)
        self._profile = self._make_profile(num_blocks, total, activations, overhead)
        logger.info("%s", self._profile)
        return num_blocks

    def _num_blocks(self, kv_cache_bytes: int) -> int:
        """How many blocks the pool gets, the null block included."""
        args, max_model_len = self.args, self.limits.max_model_len
        num_blocks = args.num_gpu_blocks_override or (
            (args.kv_cache_memory_bytes or kv_cache_bytes) // self.block_bytes
        )
        capacity = max(0, num_blocks - 1) * args.block_size
        if capacity < max_model_len - 1:  # a sequence's last token is never in the cache
            or_less = f", or lower max_model_len to {capacity + 1} or less" if capacity else ""
            raise ValueError(
                f"the KV cache holds {capacity} tokens ({max(0, num_blocks - 1)} usable blocks of "
                f"{args.block_size}), less than one sequence of max_model_len={max_model_len}; "
                f"raise num_gpu_blocks_override, kv_cache_memory_bytes or {self._knob}{or_less}."
            )
        room = host_memory_gib() * 2**30
        if self.device.type == "cpu" and num_blocks * self.block_bytes > room:
            raise ValueError(
                f"the KV cache would take {format_bytes(num_blocks * self.block_bytes)}, but this "
                f"machine has {format_bytes(room)}; lower num_gpu_blocks_override, "
                f"kv_cache_memory_bytes or {self._knob}."
            )
        return num_blocks

    @property
    def _knob(self) -> str:
        cpu = self.device.type == "cpu"
        return "MINIVLLM_CPU_KVCACHE_SPACE" if cpu else "gpu_memory_utilization"

    def _weight_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.model.parameters())

    def _make_profile(
        self, num_blocks: int, total: float, activations: int, overhead: int = 0
    ) -> MemoryProfile:
        step_tokens, step_seqs = self.limits.max_num_batched_tokens, self.limits.max_num_seqs
        return MemoryProfile(
            device=(describe_gpu(self.device) or ("cpu",))[0],
            total=total,
            weights=self._weight_bytes(),
            activations=activations,
            overhead=overhead,
            kv_cache=num_blocks * self.block_bytes,
            num_blocks=num_blocks,
            block_size=self.args.block_size,
            step_tokens=step_tokens,
            step_seqs=min(step_tokens, step_seqs),
        )

    def _log_size(self) -> None:
        max_model_len = self.limits.max_model_len
        concurrency = (self.num_blocks - 1) * self.args.block_size / max_model_len
        logger.info("# GPU blocks: %d, # CPU blocks: %d", self.num_blocks, self.num_host_blocks)
        logger.info(
            "Maximum concurrency for %d tokens per request: %.2fx", max_model_len, concurrency
        )
