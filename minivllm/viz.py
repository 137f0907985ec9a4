"""Figures of a run, the files in which a run can be kept, and ``show``, which lists our source."""

from minivllm.course.asking.listing import show
from minivllm.course.ch02.figures.waste import waste_bars
from minivllm.course.ch04b.figures.beam_tree import beam_tree
from minivllm.course.ch05.figures.queues import queues
from minivllm.course.ch07.figures.pareto import pareto
from minivllm.course.ch09.figures.gather_arrows import gather_arrows
from minivllm.course.ch12.figures.probability_lines import probability_lines
from minivllm.course.ch13.figures.memory_bars import memory_bars
from minivllm.course.ch13b.figures.launch_lanes import launch_lanes
from minivllm.course.ch14.figures.ngram_lookup import ngram_lookup
from minivllm.course.ch14.figures.rejection_bars import rejection_bars
from minivllm.course.ch15.figures.automaton import automaton
from minivllm.course.ch15.figures.token_strips import TokenStrip, token_strips
from minivllm.course.ch16.figures.call_stream import call_stream
from minivllm.course.ch17.figures.lora_slots import lora_slots
from minivllm.course.ch17.figures.low_rank import low_rank
from minivllm.course.ch17.figures.sorted_rows import sorted_rows
from minivllm.course.ch18.figures.pushed_error import pushed_error
from minivllm.course.ch18.figures.word_tiles import word_tiles
from minivllm.course.ch20.figures.pipeline_grid import pipeline_grid
from minivllm.course.ch20.figures.rank_lanes import rank_lanes
from minivllm.course.ch20.figures.sharded_layer import sharded_layer
from minivllm.course.ch22.figures.buckets import buckets
from minivllm.course.ch22.figures.knee import knee
from minivllm.course.ch24.figures.attention_masks import attention_masks
from minivllm.course.ch24.figures.pooled_rows import pooled_rows
from minivllm.course.ch24.figures.similarity import similarity
from minivllm.course.chA2.figures.time_shares import time_shares
from minivllm.lab.viz import (
    Figure,
    Plot,
    bit_fields,
    block_grid,
    block_table,
    compare,
    draft_lanes,
    filmstrip,
    lanes,
    latency,
    number_line,
    overlap_lanes,
    plot,
    prefix_tree,
    program_loads,
    roofline,
    save_chrome_trace,
    save_html,
    speedups,
    stepper,
    timeline,
    wire,
)

__all__ = [
    "Figure", "Plot", "TokenStrip", "attention_masks", "automaton", "beam_tree", "bit_fields",
    "block_grid", "block_table", "buckets", "call_stream", "compare", "draft_lanes", "filmstrip",
    "gather_arrows", "knee", "lanes", "latency", "launch_lanes", "lora_slots", "low_rank",
    "memory_bars", "ngram_lookup", "number_line", "overlap_lanes", "pareto", "pipeline_grid",
    "plot", "pooled_rows", "prefix_tree", "probability_lines", "program_loads", "pushed_error",
    "queues", "rank_lanes", "rejection_bars", "roofline", "save_chrome_trace", "save_html",
    "sharded_layer", "show", "similarity", "sorted_rows", "speedups", "stepper", "time_shares",
    "timeline", "token_strips", "waste_bars", "wire", "word_tiles",
]  # fmt: skip
