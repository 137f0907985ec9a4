"""Notebook 25: Multimodal: pictures in a prompt."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch25.figures.patch_slots import patch_slots

CHAPTER = Chapter(
    topic="Pictures",
    needs=("07", "08"),
    figures=(patch_slots,),
)
