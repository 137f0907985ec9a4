"""A cluster of Ray: the connection to it, and places for ranks in it.

(vLLM: vllm/v1/executor/ray_utils.py)
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
from typing import Any

import ray
from ray._private.services import get_ray_address_from_environment

_ANSWERING = 5.0  # seconds that a cluster has to take a connection
_PLACING = 10.0  # seconds that Ray may look for places
_OBJECT_STORE = 2**27  # bytes; plans and tokens are small

_connecting = threading.Lock()
_num_users = 0  # executors that use a connection to Ray which the first of them has made


def num_cores() -> int:
    """Number of cores that this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def connect(num_ranks: int) -> bool:
    """Connect to the cluster of Ray that there is, or start one of this machine.

    Returns:
        False if the program was connected before.

    Raises:
        ValueError: if RAY_ADDRESS has no cluster.
    """
    global _num_users
    with _connecting:
        if ray.is_initialized() and not _num_users:
            return False
        if not ray.is_initialized():
            _init(num_ranks)
        _num_users += 1
        return True


def _init(num_ranks: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    stated = os.environ.get("RAY_ADDRESS")
    address = get_ray_address_from_environment(None, None)  # RAY_ADDRESS, or of `ray start`
    is_there = address not in (None, "local")
    if is_there and not (is_there := _answers(address)) and stated:  # Ray would ask for minutes
        raise ValueError(f"no cluster of Ray answers at RAY_ADDRESS={stated}.")
    if is_there:
        ray.init(logging_level=logging.ERROR)
    else:  # ranks on a CPU share cores, as they do without Ray
        ray.init(
            "local",
            num_cpus=max(os.cpu_count() or 1, num_ranks),
            object_store_memory=_OBJECT_STORE,
            include_dashboard=False,
            logging_level=logging.ERROR,
        )


def _answers(address: str) -> bool:
    """True if a port is open. Addresses of another form than host:port are left to Ray."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "//" in host:
        return True
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _ANSWERING):
            return True
    except OSError:
        return False


def disconnect() -> None:
    """End what ``connect`` has made or started, if this is its last user."""
    global _num_users
    with _connecting:
        _num_users -= 1
        if not _num_users:
            # Ray's errors keep futures in reference cycles. One that is freed while there is no
            # connection ends the process.
            gc.collect()
            ray.shutdown()


def place(kind: str, size: int) -> Any:
    """Reserve a GPU or CPU for each rank, on few machines, the first on this one if it can be.

    Raises:
        ValueError: if the cluster has fewer, or others use them.
    """
    there = int(ray.cluster_resources().get(kind, 0))
    advice = "start Ray on more machines, or lower tensor_parallel_size or pipeline_parallel_size."
    if size > there:
        raise ValueError(
            f"The number of required {kind}s ({size}) exceeds the total number of available "
            f"{kind}s ({there}) in the placement group; {advice}"
        )
    here = {f"node:{ray.util.get_node_ip_address()}": 0.001}
    for first in ({kind: 1, **here}, {kind: 1}):
        group = ray.util.placement_group([first, *[{kind: 1}] * (size - 1)], strategy="PACK")
        if group.wait(_PLACING):
            return group
        ray.util.remove_placement_group(group)
    raise ValueError(
        f"Ray has found no places for {size} ranks within {2 * _PLACING:.0f} seconds: others use "
        f"the cluster's {kind}s; end them, or {advice}"
    )


def by_node(group: Any) -> list[int]:
    """Numbers of bundles: this node's first, and those of each other one in a row.

    Ranks in that order have the stages of a pipeline on as few nodes as can be.
    """
    nodes = ray.util.placement_group_table(group)["bundles_to_node_id"]
    here = ray.get_runtime_context().get_node_id()
    order = list(dict.fromkeys([here, *(nodes[bundle] for bundle in sorted(nodes))]))
    return sorted(nodes, key=lambda bundle: (order.index(nodes[bundle]), bundle))
