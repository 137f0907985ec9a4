"""Cost model: the seconds of a step on given hardware, by the roofline.

A step either computes or moves bytes, whichever takes longer (Williams et al. 2009), and pays a
fixed price on top. Decoding a few sequences moves all weights for a few tokens and is bound by
bandwidth; prefilling a long prompt is bound by arithmetic. The peaks are the data sheets', so times
are a floor: real kernels reach perhaps two thirds of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from minivllm.kv.kv_cache_spec import FullAttentionSpec
from minivllm.lab.sim.check_sizes import (
    check_at_least_zero,
    check_counts,
    check_rates,
    check_sizes,
)
from minivllm.utils.validation import check, is_int, is_number


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of some work."""

    flops: float
    num_bytes: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.num_bytes

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.num_bytes + other.num_bytes)


class CPUSeconds(NamedTuple):
    """Seconds that a step takes of the CPU, beside those of the device.

    Attributes:
        before: the device can begin: scheduling, preparing, launching kernels.
        after: the device has ended: appending tokens, the next inputs.
        after_each: the same, for each scheduled sequence.
        api_each: of the API server, for each new token: text, JSON, HTTP.
    """

    before: float
    after: float
    after_each: float
    api_each: float

    def update(self, num_sequences: int) -> float:
        """Seconds behind a step with this number of sequences."""
        return self.after + self.after_each * num_sequences


@dataclass(frozen=True)
class Hardware:
    """A device, by its peak FLOP/s, bandwidth and memory, and the CPU that it needs.

    A step takes ``overhead_s`` whatever is in it (scheduling, launching kernels, sampling). It is
    the CPU's, before the device; what the CPU does behind it can be told apart. The CPU's seconds
    are assumptions, the other numbers are from data sheets.
    """

    name: str
    flops_per_s: float  # dense, in the model's number format
    bytes_per_s: float  # memory bandwidth
    memory_bytes: float
    overhead_s: float = 1e-3
    update_s: float = 0.0  # of the CPU, behind the device
    cpu_s_per_sequence: float = 0.0  # there, too, for each scheduled sequence
    api_s_per_token: float = 0.0  # of the API server, for each new token

    def check(self, where: str) -> None:
        """Raise ``ValueError`` for a number that time cannot be computed from.

        An infinite rate may be, infinite memory may not: blocks are made of it.

        Args:
            where: what this device is called in the message.
        """
        check_rates(self, where, ["flops_per_s", "bytes_per_s"])
        check_sizes(self, where, ["memory_bytes"])
        seconds = ["overhead_s", "update_s", "cpu_s_per_sequence", "api_s_per_token"]
        check_at_least_zero(self, where, seconds)

    @property
    def ridge(self) -> float:
        """The ridge point in FLOPs per byte: above it, arithmetic is the limit."""
        return self.flops_per_s / self.bytes_per_s

    def attainable(self, intensity: float) -> float:
        """Attainable FLOP/s at an arithmetic intensity in FLOPs per byte."""
        return min(self.flops_per_s, intensity * self.bytes_per_s)

    def least_seconds(self, work: Work) -> float:
        """Roofline seconds: the longer of computing and moving. Without overhead."""
        return max(work.flops / self.flops_per_s, work.num_bytes / self.bytes_per_s)


@dataclass(frozen=True)
class ModelShape:
    """The size of a decoder-only transformer: parameters, layers, heads."""

    name: str
    num_params: float
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    bytes_per_number: int = 2  # of weights, K and V

    def check(self, where: str) -> None:
        """Raise ``ValueError`` for a size that no transformer has; ``where`` names this one."""
        check_sizes(self, where, ["num_params", "bytes_per_number"])
        check_counts(self, where, ["num_layers", "num_heads", "num_kv_heads", "head_dim"])
        check_counts(self, where, ["max_model_len"])

    @property
    def hidden_size(self) -> int:
        """Numbers per token between two layers."""
        return self.num_heads * self.head_dim

    @property
    def weight_bytes(self) -> float:
        return self.num_params * self.bytes_per_number

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V per token, over all layers."""
        return self.bytes_per_block(block_size=1)

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of K and V of a number of positions, over all layers."""
        spec = FullAttentionSpec(
            block_size,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_dim,
            bytes_per_number=self.bytes_per_number,
        )
        return self.num_layers * spec.page_size_bytes

    @property
    def flops_per_token(self) -> float:
        """A product and a sum for each parameter, the embedding's included."""
        return 2 * self.num_params

    @property
    def flops_per_attended(self) -> int:
        """For a token that looks at another: a score and a weighted value, over all heads."""
        return 4 * self.num_layers * self.num_heads * self.head_dim

    def weights_work(self, num_tokens: int) -> Work:
        """Work of all matrices on a number of tokens; the weights are read once per step."""
        return Work(self.flops_per_token * num_tokens, self.weight_bytes)

    def attention_work(self, sequences: Collection[tuple[int, int]]) -> Work:
        """Work of attention for each ``(computed tokens, new tokens)``, K and V included."""
        pairs = sum(attended_pairs(computed, new) for computed, new in sequences)
        num_kv = sum(computed + 2 * new for computed, new in sequences)
        return Work(self.flops_per_attended * pairs, self.kv_bytes_per_token * num_kv)

    def step_work(self, sequences: Collection[tuple[int, int]]) -> Work:
        """Work of a step, for each sequence's ``(computed tokens, new tokens)``."""
        num_tokens = sum(new for _, new in sequences)
        return self.weights_work(num_tokens) + self.attention_work(sequences)


HARDWARE = {
    # two cores with AVX2: 2 * 3 GHz * 32 operations; two channels of DDR4
    "laptop": Hardware("laptop", 192e9, 40e9, 32e9),
    "a100": Hardware("a100", 312e12, 2.0e12, 80e9),  # SXM, 80 GB
    "h100": Hardware("h100", 989e12, 3.35e12, 80e9),  # SXM
    "h200": Hardware("h200", 989e12, 4.8e12, 141e9),
}

MODELS = {
    "embedded": ModelShape(
        "embedded",
        4.07e6,
        5,
        num_heads=4,
        num_kv_heads=4,
        head_dim=64,
        max_model_len=8192,
        bytes_per_number=4,
    ),
    "llama-8b": ModelShape(
        "llama-8b", 8.03e9, 32, num_heads=32, num_kv_heads=8, head_dim=128, max_model_len=8192
    ),
    "opt-13b": ModelShape(
        "opt-13b", 13e9, 40, num_heads=40, num_kv_heads=40, head_dim=128, max_model_len=2048
    ),  # the paper's
    # Weights of 83 % of an 80 GB device: of that size, a second device gives 13.9 times the
    # blocks, which is the number in vLLM's post on distributed inference (2025).
    "33b": ModelShape(
        "33b", 33.2e9, 60, num_heads=56, num_kv_heads=8, head_dim=128, max_model_len=8192
    ),
    "llama-2-70b": ModelShape(
        "llama-2-70b", 68.98e9, 80, num_heads=64, num_kv_heads=8, head_dim=128, max_model_len=4096
    ),
}


class CostModel:
    """Seconds per step, for one model on one device."""

    def __init__(self, hardware: Hardware, model: ModelShape):
        self.hardware = hardware
        self.model = model
        # as ``minivllm.lab.sim.cluster.Cluster`` has them: one stage of one rank
        self.stages = [self]
        self.num_ranks = 1
        self.num_all_reduces = 0
        self.cpu = CPUSeconds(
            before=hardware.overhead_s,
            after=hardware.update_s,
            after_each=hardware.cpu_s_per_sequence,
            api_each=hardware.api_s_per_token,
        )
        # Each is a sum over the step's tokens, so a step's cost is three products.
        self._s_per_token = model.flops_per_token / hardware.flops_per_s
        self._s_per_attended = model.flops_per_attended / hardware.flops_per_s
        self._s_for_weights = model.weight_bytes / hardware.bytes_per_s
        self._overhead_s = hardware.overhead_s
        self._s_per_kv = model.kv_bytes_per_token / hardware.bytes_per_s

    def step_seconds(self, num_tokens: int, num_attended: int, num_kv: int) -> float:
        """``max(FLOPs / rate, bytes / bandwidth) + overhead``, see ``device_seconds``."""
        return self.device_seconds(num_tokens, num_attended, num_kv) + self._overhead_s

    def device_seconds(self, num_tokens: int, num_attended: int, num_kv: int) -> float:
        """Seconds of the device: ``max(FLOPs / rate, bytes / bandwidth)``.

        Args:
            num_tokens: scheduled in this step.
            num_attended: over all of them, how many tokens each one sees, itself included.
            num_kv: tokens whose K and V are read (every scheduled sequence's context, once) or
                written. The weights are read once, whatever the batch.
        """
        compute = self._s_per_token * num_tokens + self._s_per_attended * num_attended
        memory = self._s_for_weights + self._s_per_kv * num_kv
        return compute if compute > memory else memory

    def num_blocks(self, block_size: int, gpu_memory_utilization: float = 0.9) -> int:
        """Blocks of K and V beside the weights, the null block included.

        Raises:
            ValueError: if the weights leave no room for two.
        """
        check(is_int(block_size, 1), "block_size", block_size, "an integer of at least 1")
        share = gpu_memory_utilization
        ok = is_number(share) and 0 < share <= 1
        check(ok, "gpu_memory_utilization", share, "a number above 0 and at most 1")
        left = self.hardware.memory_bytes * share - self.model.weight_bytes
        num_blocks = int(left // self.model.bytes_per_block(block_size))
        if num_blocks < 2:
            raise ValueError(
                f"{self.model.name} has {self.model.weight_bytes / 1e9:.1f} GB of weights, and "
                f"{share:.0%} of {self.hardware.name} is "
                f"{self.hardware.memory_bytes * share / 1e9:.1f} GB; that leaves no room for K and "
                "V. Choose other hardware, more ranks of a node, or give num_blocks."
            )
        return num_blocks


def attended_pairs(num_computed: int, num_new: int) -> int:
    """Query-key pairs of causal attention: ``num_new`` tokens after ``num_computed``."""
    return num_new * num_computed + num_new * (num_new + 1) // 2
