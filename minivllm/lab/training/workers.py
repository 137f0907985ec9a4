"""Several processes train one network: each reads its part of a batch, gradients are averaged.

A process with one thread never waits for another within a step, which pays when the cores are
shared with other programs. Without `in_workers` there is one process, and nothing to exchange.
"""

import socket
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def number() -> int:
    """Which worker this is; worker 0 writes the files and the log."""
    return dist.get_rank() if dist.is_initialized() else 0


def count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def agreed(value: float) -> float:
    """Worker 0's value, in every worker."""
    shared = torch.tensor(value, dtype=torch.float64)
    if dist.is_initialized():
        dist.broadcast(shared, 0)
    return shared.item()


def averaging(module: nn.Module) -> nn.Module:
    """The module; with several workers, a backward pass leaves mean gradients in each of them."""
    return DistributedDataParallel(module) if dist.is_initialized() else module


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by its mean over all workers; without workers nothing happens."""
    if not dist.is_initialized():
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    together = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(together)
    together /= count()
    parts = together.split([gradient.numel() for gradient in gradients])
    for gradient, mean in zip(gradients, parts, strict=True):
        gradient.copy_(mean.view_as(gradient))


def _work(worker: int, workers: int, port: int, job: Callable[..., None], arguments: tuple) -> None:
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=worker, world_size=workers)
    job(*arguments)
    dist.destroy_process_group()


def in_workers(workers: int, job: Callable[..., None], *arguments: object) -> None:
    """Run the job in `workers` processes; a single one is this process."""
    if workers == 1:
        job(*arguments)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_work, (workers, port, job, arguments), nprocs=workers)
