"""Figures of a run, the files in which a run can be kept, and ``show``, which lists our source."""

from minivllm.lab.listing import show
from minivllm.lab.viz import *  # noqa: F403
from minivllm.lab.viz import __all__ as _FIGURES

__all__ = ["show", *_FIGURES]
