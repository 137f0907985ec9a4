"""Notebook 06b: Swapping: K and V wait on the host."""

from minivllm.course.asking.chapter import Chapter

CHAPTER = Chapter(topic="Scheduling", needs=("06",))
