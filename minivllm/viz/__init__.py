"""Figures of an engine that ran, drawn from its ``Trace`` and nothing else. Pure Python.

llm = LLM(trace=True)
llm.generate("The capital of France is")
timeline(llm.trace)
"""

from minivllm.viz.figure import Figure, Plot
from minivllm.viz.filmstrip import filmstrip
from minivllm.viz.grid import block_grid
from minivllm.viz.latency import latency
from minivllm.viz.pareto import pareto
from minivllm.viz.prefix_tree import prefix_tree
from minivllm.viz.queues import queues
from minivllm.viz.roofline_plot import roofline
from minivllm.viz.stepper import stepper
from minivllm.viz.table import block_table
from minivllm.viz.timeline import timeline
from minivllm.viz.waste import waste_bars

__all__ = [
    "Figure",
    "Plot",
    "block_grid",
    "block_table",
    "filmstrip",
    "latency",
    "pareto",
    "prefix_tree",
    "queues",
    "roofline",
    "stepper",
    "timeline",
    "waste_bars",
]
