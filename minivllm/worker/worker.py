"""Worker: owns the device. Loads the model, decides how many blocks fit, allocates them.

(vLLM: vllm/v1/worker/gpu_worker.py, cpu_worker.py)
"""

from __future__ import annotations

from pathlib import Path

import torch

from minivllm import envs
from minivllm.attention.kv_storage import KVStorage
from minivllm.attention.selector import make_backend
from minivllm.config import EngineArgs
from minivllm.kv.block_table import cdiv
from minivllm.logger import init_logger
from minivllm.models.loader import load_model
from minivllm.models.model_config import ModelConfig
from minivllm.worker.model_runner import ModelRunner

logger = init_logger(__name__)

_DTYPES = {"half": torch.float16, "float": torch.float32}


class Worker:
    """One device with a model on it.

    Args:
        args: validated engine arguments.
        directory: the model's Hugging Face directory.
        config: what its config.json says.
        max_model_len: the longest sequence that must fit.

    Raises:
        ValueError: if the attention backend cannot run here, or the cache would be too small for
            one sequence of that length.
    """

    def __init__(self, args: EngineArgs, directory: Path, config: ModelConfig, max_model_len: int):
        self.args = args
        self.config = config
        self.device = self._pick_device(args.device)
        attention = make_backend(args.attention_backend, self.device)
        self.dtype = config.dtype
        if args.dtype != "auto":
            self.dtype = _DTYPES.get(args.dtype) or getattr(torch, args.dtype)
        shape = (config.num_kv_heads, config.head_dim)
        self.block_bytes = KVStorage.block_bytes(
            config.num_layers, args.block_size, *shape, self.dtype
        )
        if self.device.type == "cpu":  # a stated size: a cache too small is refused before loading
            self.num_blocks = self._num_blocks(max_model_len)
        model = load_model(
            directory, config, self.dtype, self.device, args.load_format, args.use_tqdm_on_load
        )
        if self.device.type == "cuda":  # what the weights leave
            self.num_blocks = self._num_blocks(max_model_len)
        # More host blocks than all running sequences could fill are of no use to anyone.
        most = args.max_num_seqs * cdiv(max_model_len, args.block_size)
        self.num_host_blocks = min(int(args.swap_space * 2**30) // self.block_bytes, most)
        storage, host_storage = (
            KVStorage(config.num_layers, num_blocks, args.block_size, *shape, self.dtype, device)
            for num_blocks, device in (
                (self.num_blocks, self.device),
                (self.num_host_blocks + 1, torch.device("cpu")),
            )
        )
        self.model_runner = ModelRunner(model, storage, host_storage, args.block_size, attention)
        self._log_size(max_model_len)

    @staticmethod
    def _pick_device(name: str) -> torch.device:
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cuda" and not torch.cuda.is_available():
            raise ValueError("device='cuda', but torch sees no GPU here; use 'cpu' or 'auto'.")
        return torch.device(name)

    def _num_blocks(self, max_model_len: int) -> int:
        """How many blocks the pool gets, the null block included."""
        args = self.args
        if args.num_gpu_blocks_override is not None:
            num_blocks = args.num_gpu_blocks_override
        else:
            num_blocks = self._kv_cache_bytes() // self.block_bytes
        capacity = (num_blocks - 1) * args.block_size
        if capacity < max_model_len - 1:  # a sequence's last token is never in the cache
            raise ValueError(
                f"the KV cache holds {max(0, capacity)} tokens ({max(0, num_blocks - 1)} usable "
                f"blocks of {args.block_size}), less than one sequence of "
                f"max_model_len={max_model_len}; raise num_gpu_blocks_override, "
                "kv_cache_memory_bytes or MINIVLLM_CPU_KVCACHE_SPACE, or lower max_model_len."
            )
        return num_blocks

    def _kv_cache_bytes(self) -> int:
        if self.args.kv_cache_memory_bytes is not None:
            return self.args.kv_cache_memory_bytes
        if self.device.type == "cpu":
            return envs.cpu_kvcache_bytes()
        free, total = torch.cuda.mem_get_info(self.device)
        return int(total * self.args.gpu_memory_utilization) - (total - free)

    def _log_size(self, max_model_len: int) -> None:
        usable = self.num_blocks - 1
        concurrency = usable * self.args.block_size / max_model_len
        logger.info("# GPU blocks: %d, # CPU blocks: %d", self.num_blocks, self.num_host_blocks)
        logger.info(
            "Maximum concurrency for %d tokens per request: %.2fx", max_model_len, concurrency
        )
