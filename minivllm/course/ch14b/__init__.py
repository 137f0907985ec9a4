"""Notebook 14b: Proposers that learn: a draft model, Medusa, EAGLE."""

from minivllm.course.asking.chapter import Chapter

CHAPTER = Chapter(topic="From logits to answers", needs=("14",))
