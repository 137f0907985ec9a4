"""Labs: write a piece of the engine, plug it in, and let it be graded as our own code is.

``labs.allocate_slots``, ``labs.copy_on_write`` and ``labs.find_longest_cache_hit`` ask for classes,
all others for functions. ``ask(labs.cap, my_cap)`` says what is to be written and grades it;
``labs.grade(my_cap)`` only grades, and finds the lab by the name or by the class it extends.
``labs.mini_engine`` puts pieces together, and ``labs.progress()`` prints which labs are passed.
Each lab is a file of its own: stub, solution and check.
"""

from __future__ import annotations

from collections.abc import Callable

from minivllm.course.assembly import assemble, mini_engine
from minivllm.course.ch03.lab_allocate_slots import LAB as allocate_slots
from minivllm.course.ch04.lab_copy_on_write import LAB as copy_on_write
from minivllm.course.ch05.lab_schedule import LAB as schedule
from minivllm.course.ch07.lab_cap import LAB as cap
from minivllm.course.ch08.lab_find_longest_cache_hit import LAB as find_longest_cache_hit
from minivllm.course.ch10.lab_copy import COPY as copy
from minivllm.course.ch10.lab_copy import MASKED_ADD as masked_add
from minivllm.course.ch10.lab_decode import DECODE as decode
from minivllm.course.ch10.lab_decode import DECODE_ONE as decode_one
from minivllm.course.ch10.lab_online_softmax import LAB as online_softmax
from minivllm.course.ch10.lab_rows import ROW_SOFTMAX as row_softmax
from minivllm.course.ch10.lab_rows import TABLE_SUM as table_sum
from minivllm.course.ch11.lab_merge import LAB as merge
from minivllm.course.ch12.lab_top_p import LAB as top_p
from minivllm.course.ch14.lab_propose import LAB as propose
from minivllm.course.ch15.lab_mask import LAB as mask
from minivllm.course.ch16.lab_tool_stream import LAB as tool_stream
from minivllm.course.ch17.lab_segments import LAB as segments
from minivllm.course.ch18.lab_dequantize import LAB as dequantize
from minivllm.course.ch19.lab_attend_codes import LAB as attend_codes
from minivllm.course.ch20.lab_mlp import LAB as parallel_mlp
from minivllm.course.ch21b.lab_join import LAB as join
from minivllm.course.ch22.lab_quantile import LAB as quantile
from minivllm.course.ch24.lab_mean import LAB as mean_rows
from minivllm.course.ch26.lab_fit import LAB as fit_line
from minivllm.course.grading.class_lab import ClassLab, plug_in
from minivllm.course.grading.function_lab import FunctionLab
from minivllm.course.grading.milestones import progress
from minivllm.course.grading.verdicts import Verdict, verdicts

__all__ = [
    "ClassLab",
    "FunctionLab",
    "Verdict",
    "allocate_slots",
    "assemble",
    "attend_codes",
    "cap",
    "copy",
    "copy_on_write",
    "decode",
    "decode_one",
    "dequantize",
    "find_longest_cache_hit",
    "fit_line",
    "grade",
    "join",
    "mask",
    "masked_add",
    "mean_rows",
    "merge",
    "mini_engine",
    "online_softmax",
    "parallel_mlp",
    "plug_in",
    "progress",
    "propose",
    "quantile",
    "row_softmax",
    "schedule",
    "segments",
    "table_sum",
    "tool_stream",
    "top_p",
    "verdicts",
]  # fmt: skip

_CLASSES = (allocate_slots, copy_on_write, find_longest_cache_hit)
CLASS_LABS = {lab.name: lab for lab in _CLASSES}
_FUNCTIONS = (
    schedule, cap, copy, masked_add, table_sum, row_softmax, online_softmax, decode_one, decode,
    merge, top_p, propose, mask, tool_stream, segments, dequantize,
    attend_codes, parallel_mlp, join, quantile, mean_rows, fit_line,
)  # fmt: skip
FUNCTION_LABS = {lab.name: lab for lab in _FUNCTIONS}


def grade(answer: type | Callable, seed: int = 0) -> None:
    """Print a report: what passed, and the first thing that did not, explained.

    Args:
        answer: a class for one of the first three labs, or a function with a stub's name.
        seed: another one is another lot of inputs.

    Raises:
        ValueError: for what is no seed.
    """
    name = getattr(answer, "__name__", "").removeprefix("my_")
    lab = FUNCTION_LABS.get(name)
    for each in CLASS_LABS.values():
        if isinstance(answer, type) and issubclass(answer, each.base):
            lab = each
    if lab is None:
        bases = ", ".join(each.base.__name__ for each in CLASS_LABS.values())
        print(
            f"not yet: give a class that extends one of {bases}, or a function with a stub's "
            f"name, got {answer!r}."
        )
        return
    lab.grade(answer, seed)
