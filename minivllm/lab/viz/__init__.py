"""Figures of a run: from the engine's ``Trace``, or from the numbers of a simulation. No torch.

llm = LLM(trace=True)
llm.generate("The capital of France is")
timeline(llm.trace)
"""

from minivllm.lab.viz.draw.figure import Figure, Plot
from minivllm.lab.viz.draw.plots import plot
from minivllm.lab.viz.figures.attention_masks import attention_masks
from minivllm.lab.viz.figures.automaton import automaton
from minivllm.lab.viz.figures.beam_tree import beam_tree
from minivllm.lab.viz.figures.bit_fields import bit_fields
from minivllm.lab.viz.figures.block_grid import block_grid
from minivllm.lab.viz.figures.block_table import block_table
from minivllm.lab.viz.figures.buckets import buckets
from minivllm.lab.viz.figures.call_stream import call_stream
from minivllm.lab.viz.figures.draft_lanes import draft_lanes
from minivllm.lab.viz.figures.filmstrip import filmstrip
from minivllm.lab.viz.figures.gather_arrows import gather_arrows
from minivllm.lab.viz.figures.knee import knee
from minivllm.lab.viz.figures.lanes import lanes
from minivllm.lab.viz.figures.latency import latency
from minivllm.lab.viz.figures.launch_lanes import launch_lanes
from minivllm.lab.viz.figures.lora_slots import lora_slots
from minivllm.lab.viz.figures.low_rank import low_rank
from minivllm.lab.viz.figures.memory_bars import memory_bars
from minivllm.lab.viz.figures.ngram_lookup import ngram_lookup
from minivllm.lab.viz.figures.number_line import number_line
from minivllm.lab.viz.figures.pareto import pareto
from minivllm.lab.viz.figures.pipeline_grid import pipeline_grid
from minivllm.lab.viz.figures.pooled_rows import pooled_rows
from minivllm.lab.viz.figures.prefix_tree import prefix_tree
from minivllm.lab.viz.figures.probability_lines import probability_lines
from minivllm.lab.viz.figures.program_loads import program_loads
from minivllm.lab.viz.figures.pushed_error import pushed_error
from minivllm.lab.viz.figures.queues import queues
from minivllm.lab.viz.figures.rank_lanes import rank_lanes
from minivllm.lab.viz.figures.rejection_bars import rejection_bars
from minivllm.lab.viz.figures.roofline import roofline
from minivllm.lab.viz.figures.sharded_layer import sharded_layer
from minivllm.lab.viz.figures.similarity import similarity
from minivllm.lab.viz.figures.sorted_rows import sorted_rows
from minivllm.lab.viz.figures.speedups import speedups
from minivllm.lab.viz.figures.stepper import stepper
from minivllm.lab.viz.figures.time_shares import time_shares
from minivllm.lab.viz.figures.timeline import compare, timeline
from minivllm.lab.viz.figures.token_strips import TokenStrip, token_strips
from minivllm.lab.viz.figures.waste import waste_bars
from minivllm.lab.viz.figures.wire import wire
from minivllm.lab.viz.figures.word_tiles import word_tiles
from minivllm.lab.viz.page.chrome_trace import save_chrome_trace
from minivllm.lab.viz.page.page import save_html

__all__ = [
    "Figure", "Plot", "TokenStrip", "attention_masks", "automaton", "beam_tree", "bit_fields",
    "block_grid", "block_table", "buckets", "call_stream", "compare", "draft_lanes", "filmstrip",
    "gather_arrows", "knee", "lanes", "latency", "launch_lanes", "lora_slots", "low_rank",
    "memory_bars", "ngram_lookup", "number_line", "pareto", "pipeline_grid", "plot", "pooled_rows",
    "prefix_tree", "probability_lines", "program_loads", "pushed_error", "queues", "rank_lanes",
    "rejection_bars", "roofline", "save_chrome_trace", "save_html", "sharded_layer", "similarity",
    "sorted_rows", "speedups", "stepper", "time_shares", "timeline", "token_strips", "waste_bars",
    "wire", "word_tiles",
]  # fmt: skip
