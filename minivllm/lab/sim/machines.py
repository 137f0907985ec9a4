"""NODES: machines of eight devices, and what a step reaches of their peaks.

From data sheets are peaks, memory and links. Fitted are five numbers of a node, to the times of
Llama-2-70B that Splitwise has measured (Patel et al. 2024; data/perf_model.csv of splitwise-sim,
medians). Milliseconds per token at prompts of 512 tokens:

    ===============  ====  ====  ====  ====  ====  ====
    tensor parallel     2     2     4     8     8     8
    sequences           1    32     1     1    16    64
    8xa100           54.9  72.1  45.0  44.9  50.4  71.6
    8xh100           37.0  52.3  29.7  29.8  34.2  50.2
    ===============  ====  ====  ====  ====  ====  ====

More ranks soon bring nothing: the CPU, which launches the kernels of each layer, is the floor. And
each sequence takes time of the CPU alone, after the device's: sampling, text, the next inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minivllm.lab.sim.check_sizes import check_at_least_zero, check_counts, check_shares
from minivllm.lab.sim.cost import HARDWARE, Hardware
from minivllm.lab.sim.interconnects import LINKS, Link
from minivllm.utils.validation import check


@dataclass(frozen=True)
class Node:
    """Several equal devices in one machine; a cluster has as many machines as it needs.

    Attributes:
        device: with its peaks. Of its CPU's seconds only the API server's count: the others are
            the two below.
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

    def check(self, where: str) -> None:
        """Raise ``ValueError`` for a part of another type, or a number that makes no time."""
        for name, kind in (("device", Hardware), ("link", Link), ("network", Link)):
            part = getattr(self, name)
            check(isinstance(part, kind), f"{where}.{name}", part, f"a {kind.__name__}")
            part.check(f"{where}.{name}")
        check_counts(self, where, ["num_devices"])
        check_shares(self, where, ["flops_share", "bytes_share"])
        check_at_least_zero(self, where, ["flops_exponent"])
        check_at_least_zero(self, where, ["launch_s_per_layer", "cpu_s_per_sequence"])

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
# tokens at TP 2 and 8 (688 and 274 ms on A100, 310 and 137 on H100), without their all-reduces. The
# columns of 32 and 16 sequences, and that of TP 4, were not used.
NODES = {
    "8xa100": Node(
        "8xa100", HARDWARE["a100"], 8, link=LINKS["nvlink3"], network=LINKS["infiniband-hdr"],
        flops_share=0.81, flops_exponent=0.27, bytes_share=0.65,
        launch_s_per_layer=44.5e-3 / 80, cpu_s_per_sequence=0.4e-3,
    ),
    "8xh100": Node(
        "8xh100", HARDWARE["h100"], 8, link=LINKS["nvlink4"], network=LINKS["infiniband-ndr"],
        flops_share=0.60, flops_exponent=0.32, bytes_share=0.58,
        launch_s_per_layer=29.4e-3 / 80, cpu_s_per_sequence=0.32e-3,
    ),
}  # fmt: skip
