"""Cluster: the seconds of a step on several devices, by ranks and stages.

A rank is a thinner model on one device: a part of the heads, K, V and weights, and some layers. Its
step is the longest of computing, moving bytes and launching kernels. Twice in each layer the ranks
that share it add up what they have (all-reduce).
"""

from __future__ import annotations

from dataclasses import replace

from minivllm.distributed.shard import check_tensor_parallel_size, get_pp_indices, kv_head_share
from minivllm.lab.sim.cost import CostModel, CPUSeconds, ModelShape
from minivllm.lab.sim.machines import Node


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
        self.num_layers = end - begin
        self.num_ranks = tp_size
        self.rank_cost = CostModel(node.reached(tp_size), thin(model, self.num_layers, tp_size))
        self.launch_s = self.num_layers * node.launch_s_per_layer
        # two sums in a layer, and one for the embedding
        self.num_all_reduces = (2 * self.num_layers + (stage == 0)) * (tp_size > 1)
        first = stage * tp_size  # its ranks have neighbouring numbers
        self.link = node.link_between(first, first + tp_size - 1)
        next_links = [node.link_between(r, r + tp_size) for r in range(first, first + tp_size)]
        self.next_link = min(next_links, key=lambda link: link.bytes_per_s)
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
        """Seconds of this stage's part of a step: a node's plans take no time of their own."""
        return self.device_seconds(num_tokens, num_attended, num_kv)

    def device_seconds(self, num_tokens: int, num_attended: int, num_kv: int) -> float:
        """Seconds of this stage's part of a step. Arguments as for ``CostModel``.

        Kernels are launched while others run, by a process for each rank, so only the longer of the
        two counts. The gathering of the logits is left out: it is one operation, of the rows that
        sample.
        """
        device = self.rank_cost.device_seconds(num_tokens, num_attended, num_kv)
        device += self.num_all_reduces * self.all_reduce_seconds(num_tokens)
        return max(device, self.launch_s)


class Cluster:
    """Cost of a model whose stages are each shared by ``tensor_parallel_size`` ranks.

    Args:
        node: the kind of machine; there are as many as the ranks need.
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
        self.model = model
        pp_size, tp_size = pipeline_parallel_size, tensor_parallel_size
        check_tensor_parallel_size(
            model.num_heads, model.num_kv_heads, model.hidden_size, size=tp_size
        )
        self.stages = [
            StageCost(node, model, i, pp_size=pp_size, tp_size=tp_size) for i in range(pp_size)
        ]
        self.num_ranks = tp_size * pp_size
        self.cpu = CPUSeconds(
            before=0.0,
            after=0.0,
            after_each=node.cpu_s_per_sequence,
            api_each=node.device.api_s_per_token,
        )

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
