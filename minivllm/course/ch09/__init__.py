"""Notebook 09: Paged attention in PyTorch."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch09.figures.gather_arrows import gather_arrows

CHAPTER = Chapter(topic="Kernels", needs=("01", "03"), figures=(gather_arrows,))
