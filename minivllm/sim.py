"""The simulator: the real scheduler and block manager without a model, and what a step would cost.

``python -m minivllm.sim`` is its command line.
"""

from minivllm.lab.contiguous.manager import ContiguousKVCacheManager
from minivllm.lab.contiguous.slab_pool import BuddyPool, FirstFitPool
from minivllm.lab.ranks import run_ranks
from minivllm.lab.sim.acceptance import Acceptance
from minivllm.lab.sim.chats import chats, table_chat
from minivllm.lab.sim.chi_square import chi_square
from minivllm.lab.sim.cluster import Cluster
from minivllm.lab.sim.cost import (
    HARDWARE,
    MODELS,
    CostModel,
    Hardware,
    ModelShape,
    Work,
    attended_pairs,
)
from minivllm.lab.sim.disaggregation import (
    LinkConnector,
    PoolTimes,
    goodput,
    poisson,
    simulate_pools,
)
from minivllm.lab.sim.dry_run import dry_run
from minivllm.lab.sim.interconnects import LINKS, Link, ring_bytes
from minivllm.lab.sim.launches import launch_each, launch_graph
from minivllm.lab.sim.loop import runner_output
from minivllm.lab.sim.machines import NODES, Node
from minivllm.lab.sim.make import make_scheduler, picture_request
from minivllm.lab.sim.pool_costs import TABLES, RooflineCost, TableCost
from minivllm.lab.sim.prefix_hits import prefix_hits
from minivllm.lab.sim.recordings import GOLDEN, HYBRID_GOLDEN, load_recording
from minivllm.lab.sim.replay import replay
from minivllm.lab.sim.result import percentiles
from minivllm.lab.sim.run import simulate
from minivllm.lab.sim.sharing import measure_sharing
from minivllm.lab.sim.waste import NUM_SLOTS, measure_waste
from minivllm.lab.sim.workloads import SimRequest, alpaca_like, sharegpt_like

__all__ = [
    "GOLDEN", "HARDWARE", "HYBRID_GOLDEN", "LINKS", "MODELS", "NODES", "NUM_SLOTS", "TABLES",
    "Acceptance", "BuddyPool", "Cluster", "ContiguousKVCacheManager", "CostModel", "FirstFitPool",
    "Hardware", "Link", "LinkConnector", "ModelShape", "Node", "PoolTimes", "RooflineCost",
    "SimRequest", "TableCost", "Work", "alpaca_like", "attended_pairs", "chats", "chi_square",
    "dry_run", "goodput", "launch_each", "launch_graph", "load_recording", "make_scheduler",
    "measure_sharing", "measure_waste", "percentiles", "picture_request", "poisson", "prefix_hits",
    "replay", "ring_bytes", "run_ranks", "runner_output", "sharegpt_like", "simulate",
    "simulate_pools", "table_chat",
]  # fmt: skip

if __name__ == "__main__":
    from minivllm.lab.sim.__main__ import app

    app(prog_name="python -m minivllm.sim")
