"""Memory profiling: the peak of a full step beside weights and KV cache.

(vLLM: ``profile_run`` in vllm/v1/worker/gpu/model_runner.py)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minivllm.config import SchedulerConfig
from minivllm.models.multimodal import MultiModalEncoder
from minivllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from minivllm.pooling_params import PoolingParams
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.output import NewRequestData, SchedulerOutput
from minivllm.utils.math_utils import cdiv


def full_step(
    max_tokens: int,
    max_seqs: int,
    max_model_len: int,
    block_size: int,
    pooling_params: PoolingParams | None = None,
    num_groups: int = 1,
    mm_features: list[MultiModalFeatureSpec] | None = None,
) -> SchedulerOutput:
    """The SchedulerOutput of the largest step that the limits allow: most tokens, most logits.

    The first sequences are as long as they may be, the others have a token each. All blocks are the
    null block, so that a storage of one block is enough. Pooling models sample nothing. Items such
    as pictures are encoded for the first sequence.
    """
    lengths = [1] * min(max_tokens, max_seqs)
    left = max_tokens - len(lengths)
    for i in range(len(lengths)):
        more = min(left, max_model_len - 2)  # a prompt leaves room for a token
        lengths[i] += more
        left -= more
    params = None
    if pooling_params is None:
        params = SamplingParams(top_k=1000, top_p=0.99)  # sampling that takes the most memory
    ids = [f"profile-{i}" for i in range(len(lengths))]
    features = mm_features or []
    return SchedulerOutput(
        num_scheduled_tokens=dict(zip(ids, lengths, strict=True)),
        num_computed_tokens=dict.fromkeys(ids, 0),
        new_block_ids={
            i: tuple([0] * cdiv(n, block_size) for _ in range(num_groups))
            for i, n in zip(ids, lengths, strict=True)
        },
        scheduled_new_reqs=[
            NewRequestData(
                seq_id,
                [0] * n,
                n,
                params,
                seed=0,
                pooling_params=pooling_params,
                mm_features=features if seq_id == ids[0] else [],
            )
            for seq_id, n in zip(ids, lengths, strict=True)
        ],
        scheduled_encoder_inputs={ids[0]: list(range(len(features)))},
    )


def largest_items(
    encoder: MultiModalEncoder | None, limits: SchedulerConfig
) -> list[MultiModalFeatureSpec]:
    """The largest items that a step may encode, one after the other; none of a text model."""
    if encoder is None:
        return []
    budget = limits.max_num_encoder_input_tokens or limits.max_num_batched_tokens
    modality, data, length = encoder.largest_item(min(budget, limits.max_model_len))
    return [
        MultiModalFeatureSpec(
            data=dict(data),
            modality=modality,
            identifier=f"profile-{number}",
            mm_position=PlaceholderRange(offset=number * length, length=length),
        )
        for number in range(max(1, budget // length))
    ]


def peak_bytes(device: torch.device, run: Callable[[], object]) -> int:
    """Peak memory of the tensors that ``run`` makes, in bytes.

    On a GPU its allocator counts. On a CPU we count every tensor's storage from the operation that
    makes it until it is let go; what an operation needs for itself meanwhile is not seen.
    """
    if device.type == "cpu":
        with _LiveTensors() as live:
            run()
        return live.peak
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


class _LiveTensors(TorchDispatchMode):
    """Torch dispatch mode that adds up the storages of live tensors."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = func is torch.ops.aten.lift_fresh.default  # of numpy's memory, by from_numpy
        given = set() if made else {id(storage) for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if id(storage) in self._known or id(storage) in given:
                continue  # a view, or written in place
            self._known.add(id(storage))
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._let_go, id(storage), storage.nbytes())
        return result

    def _let_go(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.now -= nbytes


def _storages(values) -> list[torch.UntypedStorage]:
    """Storages of the tensors among these values. Packed weights do not show theirs."""
    tensors = (t for t in tree_leaves(values) if isinstance(t, torch.Tensor))
    return [t.untyped_storage() for t in tensors if not t.is_mkldnn]
