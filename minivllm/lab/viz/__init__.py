"""Figures of a run: from the engine's ``Trace``, or from the numbers of a simulation. No torch.

llm = LLM(trace=True)
llm.generate("The capital of France is")
timeline(llm.trace)
"""

from minivllm.lab.viz.draw.figure import Figure, Plot
from minivllm.lab.viz.draw.plots import plot
from minivllm.lab.viz.figures.bit_fields import bit_fields
from minivllm.lab.viz.figures.block_grid import block_grid
from minivllm.lab.viz.figures.block_table import block_table
from minivllm.lab.viz.figures.draft_lanes import draft_lanes
from minivllm.lab.viz.figures.filmstrip import filmstrip
from minivllm.lab.viz.figures.lanes import lanes
from minivllm.lab.viz.figures.latency import latency
from minivllm.lab.viz.figures.number_line import number_line
from minivllm.lab.viz.figures.overlap_lanes import overlap_lanes
from minivllm.lab.viz.figures.prefix_tree import prefix_tree
from minivllm.lab.viz.figures.program_loads import program_loads
from minivllm.lab.viz.figures.rank_lanes import rank_lanes
from minivllm.lab.viz.figures.roofline import roofline
from minivllm.lab.viz.figures.similarity import similarity
from minivllm.lab.viz.figures.speedups import speedups
from minivllm.lab.viz.figures.step_tensors import step_tensors
from minivllm.lab.viz.figures.stepper import stepper
from minivllm.lab.viz.figures.table_strip import table_strip
from minivllm.lab.viz.figures.timeline import compare, timeline
from minivllm.lab.viz.figures.wire import wire
from minivllm.lab.viz.page.chrome_trace import save_chrome_trace
from minivllm.lab.viz.page.page import save_html

__all__ = [
    "Figure", "Plot", "bit_fields", "block_grid", "block_table", "compare", "draft_lanes",
    "filmstrip", "lanes", "latency", "number_line", "overlap_lanes", "plot", "prefix_tree",
    "program_loads", "rank_lanes", "roofline", "save_chrome_trace", "save_html", "similarity",
    "speedups", "step_tensors", "stepper", "table_strip", "timeline", "wire",
]  # fmt: skip
