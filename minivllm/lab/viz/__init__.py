"""Figures of an engine that ran, drawn from its ``Trace`` and nothing else. Pure Python.

llm = LLM(trace=True)
llm.generate("The capital of France is")
timeline(llm.trace)
"""

from minivllm.lab.viz.figure import Figure, Plot
from minivllm.lab.viz.filmstrip import filmstrip
from minivllm.lab.viz.grid import block_grid
from minivllm.lab.viz.latency import latency
from minivllm.lab.viz.pareto import pareto
from minivllm.lab.viz.prefix_tree import prefix_tree
from minivllm.lab.viz.queues import queues
from minivllm.lab.viz.roofline_plot import roofline
from minivllm.lab.viz.stepper import stepper
from minivllm.lab.viz.table import block_table
from minivllm.lab.viz.timeline import timeline
from minivllm.lab.viz.waste import waste_bars

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
