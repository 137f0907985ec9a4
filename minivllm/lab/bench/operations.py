"""Operations of PyTorch that run: kept, and counted as the kernels that a GPU would start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minivllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from minivllm.entrypoints.llm import LLM


class Operations(TorchDispatchMode):
    """Keeps each operation that runs while it is entered.

    ``calls`` has a tuple for each: the function, its arguments by place and by name, its result.
    """

    def __init__(self):
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, Any]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result

    @property
    def kernels(self) -> list[str]:
        """Names of the operations for which a GPU starts a kernel, such as "linear"."""
        kernels = (function for function, *_ in self.calls if is_kernel(function))
        return [str(function).removeprefix("aten.").split(".")[0] for function in kernels]

    @property
    def num_views(self) -> int:
        """Number of operations that start nothing."""
        return len(self.calls) - len(self.kernels)


def is_kernel(function: Any) -> bool:
    """Does an operation start something? A view, such as a transpose or a slice, does not.

    Its schema says so: a view's result is an alias of an argument, and nothing is written.
    """
    schema = function._schema
    writes = any(a.alias_info and a.alias_info.is_write for a in schema.arguments)
    is_view = any(result.alias_info for result in schema.returns)
    return writes or not is_view


def count_kernels(llm: LLM) -> Operations:
    """The operations of the model in one decode step, from its first to its last.

    Args:
        llm: an engine with no request; this one is taken out again.
    """
    engine = llm.llm_engine
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False)
    engine.add_request("counted", {"prompt_token_ids": [1, 2, 3, 4]}, params)
    engine.step()  # the prompt
    model: torch.nn.Module = engine.model_runner.model
    operations = Operations()
    hooks = (
        model.register_forward_pre_hook(lambda *_: operations.__enter__() and None),
        model.register_forward_hook(lambda *_: operations.__exit__(None, None, None)),
    )
    try:
        engine.step()  # a decode
    finally:
        for hook in hooks:
            hook.remove()
        engine.abort_request(["counted"])
    return operations
