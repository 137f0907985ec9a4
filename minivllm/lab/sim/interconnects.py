"""LINKS: what joins devices, and how long a transfer or an all-reduce takes on it."""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.lab.sim.check_sizes import check_at_least_zero, check_rates


@dataclass(frozen=True)
class Link:
    """A link between two devices: what it carries in one direction, and its latency."""

    name: str
    bytes_per_s: float
    latency_s: float

    def check(self, where: str) -> None:
        """Raise ``ValueError`` for a number that time cannot be computed from."""
        check_rates(self, where, ["bytes_per_s"])
        check_at_least_zero(self, where, ["latency_s"])

    def send_seconds(self, num_bytes: float) -> float:
        """Seconds from one device to the next."""
        return self.latency_s + num_bytes / self.bytes_per_s

    def all_reduce_seconds(self, num_bytes: float, num_ranks: int) -> float:
        """Seconds of a ring all-reduce.

        The tensor is cut into a piece per rank. ``n - 1`` times each rank sends a piece to its
        neighbour, which adds its own; then ``n - 1`` times it passes on a finished one.

        Args:
            num_bytes: of the tensor, which every rank has.
            num_ranks: n; alone there is nothing to do.
        """
        return 2 * (num_ranks - 1) * self.send_seconds(num_bytes / num_ranks)


def ring_bytes(num_bytes: float, num_ranks: int) -> float:
    """Bytes that each rank sends in a ring all-reduce: ``2 (n - 1) / n`` times the tensor's."""
    return 2 * (num_ranks - 1) / num_ranks * num_bytes


# Bandwidths are the data sheets', in one direction: a sheet that adds both up is halved. The
# latencies of NVLink, PCIe and InfiniBand are those by which NCCL chooses its algorithms (ring,
# protocol LL128: hwLat in src/graph/tuning.cc).
LINKS = {
    # NVIDIA A100 data sheet: NVLink 3, 600 GB/s in both directions
    "nvlink3": Link("nvlink3", 300e9, 1.9e-6),
    # NVIDIA H100 data sheet: NVLink 4, 900 GB/s in both directions
    "nvlink4": Link("nvlink4", 450e9, 1.9e-6),
    # PCI Express base specification: 16 lanes of 16 or 32 GT/s, 128 bits of data in 130
    "pcie4": Link("pcie4", 31.5e9, 2.5e-6),
    "pcie5": Link("pcie5", 63e9, 2.5e-6),
    # NVIDIA DGX A100 data sheet: an adapter of 200 Gb/s (HDR) per GPU; DGX H100: 400 Gb/s (NDR)
    "infiniband-hdr": Link("infiniband-hdr", 25e9, 4.0e-6),
    "infiniband-ndr": Link("infiniband-ndr", 50e9, 4.0e-6),
    # IEEE 802.3by and 802.3ba: 25 and 100 Gb/s. The latency is an assumption: half of a TCP round
    # trip of 50 us in a data centre.
    "ethernet-25g": Link("ethernet-25g", 3.125e9, 25e-6),
    "ethernet-100g": Link("ethernet-100g", 12.5e9, 25e-6),
}
