"""Cluster: the seconds of a step on nodes of several devices, cut into ranks and stages.

A rank is a thinner model on one device: a part of the heads, K, V and weights, and of the layers.
Its step is the longest of computing, moving bytes and launching kernels; a sum over the ranks of a
layer (all-reduce) comes twice in each layer.

From data sheets are peaks, memory and links. Fitted are five numbers of a node, to the times of
Llama-2-70B that Splitwise has measured (Patel et al. 2024; data/perf_model.csv of splitwise-sim,
medians). Milliseconds per token at a prompt of 512 tokens:

    ======================  ====  ====  ====  ====  ====
    tensor parallel            2     4     8     8     8
    sequences                  1     1     1    16    64
    8xa100                  54.9  45.0  44.9  50.4  71.6
    8xh100                  37.0  29.7  29.8  34.2  50.2
    ======================  ====  ====  ====  ====  ====

More ranks soon bring nothing: the CPU, which launches some ten kernels per layer, is the floor. And
each sequence takes its time on the CPU alone, after the device's: sampling, text, the next inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minivllm.distributed.shard import (
    check_tensor_parallel_size,
    get_pp_indices,
    kv_head_share,
    rank_of,
)
from minivllm.distributed.shard import Coordinates as Place
from minivllm.lab.sim.cost import HARDWARE, CostModel, Hardware, ModelShape
from minivllm.lab.sim.links import LINKS, Link
from minivllm.utils.validation import check, is_int


@dataclass(frozen=True)
class Node:
    """Several equal devices in one machine; a cluster has as many machines as it needs.

    Attributes:
        device: with its peaks.
        num_devices: of the machine.
        link: between two of its devices.
        network: from a device to one of another machine.
        flops_share: of the peak FLOP/s, what products reach on one rank; see ``flops_exponent``.
        flops_exponent: on n ranks they reach ``flops_share / n ** flops_exponent``, for a rank's
            matrices are narrower.
        bytes_share: of the peak bandwidth, what reading weights, K and V reaches.
        launch_s_per_layer: seconds in which the CPU launches the kernels of a layer.
        cpu_s_per_sequence: seconds of the CPU for each scheduled sequence, after the device's.
    """

    name: str
    device: Hardware
    num_devices: int
    link: Link
    network: Link
    flops_share: float = 1.0
    flops_exponent: float = 0.0
    bytes_share: float = 1.0
    launch_s_per_layer: float = 0.0
    cpu_s_per_sequence: float = 0.0

    def reached(self, num_ranks: int) -> Hardware:
        """The device with what a rank reaches in place of the peaks, and without overhead."""
        flops_share = self.flops_share / num_ranks**self.flops_exponent
        return replace(
            self.device,
            flops_per_s=self.device.flops_per_s * flops_share,
            bytes_per_s=self.device.bytes_per_s * self.bytes_share,
            overhead_s=0.0,
        )

    def link_between(self, first_rank: int, last_rank: int) -> Link:
        """The slowest link of a group of neighbouring ranks: do they share a machine?"""
        together = first_rank // self.num_devices == last_rank // self.num_devices
        return self.link if together else self.network


# bytes_share: from TP 2, one sequence. launch_s_per_layer: from TP 8, one sequence.
# cpu_s_per_sequence: from TP 8, 64 sequences. flops_share and flops_exponent: from prompts of 2,048
# tokens at TP 2 and 8 (688 and 274 ms on A100, 310 and 137 on H100), without their all-reduces.
NODES = {
    "8xa100": Node(
        "8xa100", HARDWARE["a100"], 8, LINKS["nvlink3"], LINKS["infiniband-hdr"],
        flops_share=0.81, flops_exponent=0.27, bytes_share=0.65,
        launch_s_per_layer=44.5e-3 / 80, cpu_s_per_sequence=0.4e-3,
    ),
    "8xh100": Node(
        "8xh100", HARDWARE["h100"], 8, LINKS["nvlink4"], LINKS["infiniband-ndr"],
        flops_share=0.60, flops_exponent=0.32, bytes_share=0.58,
        launch_s_per_layer=29.4e-3 / 80, cpu_s_per_sequence=0.32e-3,
    ),
}  # fmt: skip


class StageCost:
    """Seconds of one stage: the ranks that share its layers work in step.

    Args:
        node: the devices.
        model: whole.
        stage: number of the stage.
        pp_size: number of stages.
        tp_size: number of ranks that share each layer.

    Raises:
        ValueError: for heads that do not divide, or more stages than layers.
    """

    def __init__(self, node: Node, model: ModelShape, stage: int, pp_size: int, tp_size: int):
        begin, end = get_pp_indices(model.num_layers, stage, pp_size)
        self.num_layers, self.num_ranks = end - begin, tp_size
        self.rank_cost = CostModel(node.reached(tp_size), thin(model, self.num_layers, tp_size))
        self.launch_s = self.num_layers * node.launch_s_per_layer
        # two sums in a layer, and one for the embedding
        self.num_all_reduces = (2 * self.num_layers + (stage == 0)) * (tp_size > 1)
        first = rank_of(Place(0, stage, 0), pp_size, tp_size)
        self.link = node.link_between(first, first + tp_size - 1)
        self.next_link = node.link_between(first, first + tp_size)
        self._bytes_per_token = model.hidden_size * model.bytes_per_number

    def all_reduce_bytes(self, num_tokens: int) -> int:
        """Bytes of one all-reduce: ``[tokens, hidden size]``."""
        return num_tokens * self._bytes_per_token

    def sent_bytes(self, num_tokens: int) -> int:
        """Bytes that each rank gives the next stage: a layer's output and its residual."""
        return 2 * num_tokens * self._bytes_per_token

    def all_reduce_seconds(self, num_tokens: int) -> float:
        """Seconds of one all-reduce."""
        return self.link.all_reduce_seconds(self.all_reduce_bytes(num_tokens), self.num_ranks)

    def send_seconds(self, num_tokens: int) -> float:
        """Seconds from this stage to the next."""
        return self.next_link.send_seconds(self.sent_bytes(num_tokens))

    def step_seconds(self, num_tokens: int, num_attended: int, num_kv: int) -> float:
        """Seconds of this stage's part of a step. Arguments as for ``CostModel``.

        Kernels are launched while others run, so only the longer of the two counts. The gathering
        of the logits is left out: it is one operation, of the rows that sample.
        """
        device = self.rank_cost.step_seconds(num_tokens, num_attended, num_kv)
        device += self.num_all_reduces * self.all_reduce_seconds(num_tokens)
        return max(device, self.launch_s)


class Cluster:
    """Stages of a model on nodes; each stage's layers are shared by ``tensor_parallel_size`` ranks.

    Args:
        node: the kind of machine.
        model: whole.
        tensor_parallel_size, pipeline_parallel_size: as for ``LLM``.

    Raises:
        ValueError: for heads that do not divide, or more stages than layers.
    """

    def __init__(
        self,
        node: Node,
        model: ModelShape,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
    ):
        self.node, self.model = node, model
        self.tp_size = tensor_parallel_size
        sizes = model.num_heads, model.num_kv_heads, model.hidden_size
        check_tensor_parallel_size(*sizes, self.tp_size)
        self.stages = [
            StageCost(node, model, stage, pipeline_parallel_size, self.tp_size)
            for stage in range(pipeline_parallel_size)
        ]
        self.cpu_s_per_sequence = node.cpu_s_per_sequence

    def num_blocks(self, block_size: int, gpu_memory_utilization: float = 0.9) -> int:
        """Blocks beside the weights on every rank: as many as the fullest rank has room for.

        Raises:
            ValueError: if a rank's weights leave no room for two.
        """
        each = (s.rank_cost.num_blocks(block_size, gpu_memory_utilization) for s in self.stages)
        return min(each)


def thin(model: ModelShape, num_layers: int, num_ranks: int) -> ModelShape:
    """A rank's part of a model: some layers, and of each an equal part of the heads and weights.

    Where there are fewer KV heads than ranks, each rank has one, which others have, too. Embedding
    and head are taken for parts of the layers.
    """
    if num_layers == model.num_layers and num_ranks == 1:
        return model
    kv_heads = kv_head_share(model.num_kv_heads, 0, num_ranks)
    share = num_layers / model.num_layers / num_ranks
    return replace(
        model,
        name=f"a rank's part of {model.name}",
        num_params=model.num_params * share,
        num_layers=num_layers,
        num_heads=model.num_heads // num_ranks,
        num_kv_heads=kv_heads.stop - kv_heads.start,
    )


def check_sizes(**sizes: int) -> None:
    """Raise ``ValueError`` for a number of ranks, stages or replicas that cannot be."""
    for name, size in sizes.items():
        check(is_int(size, 1) and size <= 1024, name, size, "an integer from 1 to 1024")
