"""ParallelConfig: numbers of ranks, and the kind of executor that runs them.

(vLLM: vllm/config/parallel.py)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minivllm.utils.validation import check, is_int, is_one_of

BACKENDS = ("uni", "mp", "together", "ray")


@dataclass(frozen=True)
class ParallelConfig:
    """Ranks that compute one step together."""

    tensor_parallel_size: int = 1  # ranks that each hold a part of every layer
    pipeline_parallel_size: int = 1  # stages, each with some of the layers
    # a name of BACKENDS, or a subclass of Executor; None: "uni" for one rank, "mp" for more
    distributed_executor_backend: Any = None
    data_parallel_size: int = 1  # engines behind one front end, each with ranks of its own

    @property
    def world_size(self) -> int:
        """Number of ranks of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def output_rank(self) -> int:
        """The rank whose tokens are taken: the first one of the last stage."""
        return self.world_size - self.tensor_parallel_size

    @property
    def backend(self) -> Any:
        """The backend's name or class, with the default filled in."""
        default = "uni" if self.world_size == 1 else "mp"
        return self.distributed_executor_backend or default

    @property
    def supports_async_scheduling(self) -> bool:
        """True if the executor takes a step before the one before it is done."""
        if isinstance(self.backend, str):
            return self.backend != "ray"
        return bool(getattr(self.backend, "supports_async_scheduling", False))

    def check(self) -> None:
        """Raise ``ValueError`` for a size or a backend that cannot be."""
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            value = getattr(self, name)
            ok = is_int(value, 1) and value <= 1024
            check(ok, name, value, "an integer from 1 to 1024")
        backend = self.distributed_executor_backend
        is_class = isinstance(backend, type) and hasattr(backend, "collective_rpc")
        ok = backend is None or is_class or is_one_of(backend, BACKENDS)
        allowed = f"one of {', '.join(BACKENDS)}, a subclass of Executor, or None"
        check(ok, "distributed_executor_backend", backend, allowed)
        ok = backend != "uni" or self.world_size == 1
        allowed = f"'mp' or 'together' for {self.world_size} ranks"
        check(ok, "distributed_executor_backend", backend, allowed)

    def check_devices(self, num_gpus: int | None) -> None:
        """Raise ``ValueError`` for more ranks than this machine's GPUs; None: ranks share a CPU.

        Ray looks itself for those of its cluster. Ranks that take turns in one process share a GPU.
        """
        if num_gpus is None or self.backend in ("ray", "together"):
            return
        if self.world_size > num_gpus:
            raise ValueError(
                f"World size ({self.world_size}) is larger than the number of available GPUs "
                f"({num_gpus}) in this node; lower tensor_parallel_size or pipeline_parallel_size, "
                "or start Ray on several machines and set distributed_executor_backend='ray'."
            )
