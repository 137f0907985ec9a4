"""Stand-ins for CUDA in tests: all of them, and what they pretend.

* ``CallsAgain`` pretends to record a graph: the function is called again. It cannot show that
  nothing outside the buffers is used.
* ``pretend_gpu``: torch sees a card of this name, capability, memory and build. No tensor can be
  there.
* ``pretend_no_gpu``: torch sees none, and says why: an old driver, a hidden card.
* ``pretend_memory``: what a GPU's driver answers, in this order, whoever uses the memory.
* ``out_of_memory``: the error of an allocator that has no more; nothing was taken.
* ``CompilerOnly``: Triton's driver, with a card to compile for. It launches nothing.

Tensors stay on the CPU. ``tests/gpu`` runs on a card without any of them.
"""

from types import SimpleNamespace

import torch

CUDA = torch.device("cuda")
GIB = 2**30


class CallsAgain:
    """A graph recorder for a CPU: see ``GraphRecorder`` in worker/cuda_graph_runner.py."""

    def __init__(self):
        self.num_replays = 0

    def capture(self, function):
        function()

        def replay():
            self.num_replays += 1
            function()

        return replay


def pretend_gpu(
    monkeypatch,
    name="Tesla T4",
    capability=(7, 5),
    memory=15 * GIB,
    number=1,
    built_for=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "compute_120"),
    shared_memory=64 * 1024,
):
    """Let torch see this many GPUs of one kind."""
    properties = SimpleNamespace(
        name=name, total_memory=memory, major=capability[0], minor=capability[1],
        shared_memory_per_block_optin=shared_memory, multi_processor_count=40,
    )  # fmt: skip
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for function, answer in {
        "is_available": True,
        "device_count": number,
        "get_device_properties": properties,
        "get_device_name": name,
        "get_device_capability": capability,
        "get_arch_list": list(built_for),
    }.items():
        monkeypatch.setattr(torch.cuda, function, lambda *_, answer=answer: answer)


def pretend_no_gpu(monkeypatch, reason=None):
    """Let a torch with CUDA see no GPU, and say ``reason`` when it is initialized."""

    def init():
        raise RuntimeError(reason or "No CUDA GPUs are available")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "init", init)


def pretend_memory(monkeypatch, *free_and_total):
    """Let ``mem_get_info`` give these answers one after the other; what waits does not."""
    answers = iter(free_and_total)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: next(answers))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)


def out_of_memory(*_, **__):
    """Raise what torch raises, with its words."""
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.74 GiB "
        "of which 1.06 GiB is free. See documentation for Memory Management."
    )


class CompilerOnly:
    """In place of Triton's driver: a GPU that is there to be compiled for."""

    arch = 90

    def get_current_device(self):
        return self.arch  # Triton keeps what it has compiled by device

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, 32)
