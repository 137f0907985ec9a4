"""Notebook 08: Automatic prefix caching."""

from minivllm.course.asking.chapter import Chapter
from minivllm.course.ch08.lab_find_longest_cache_hit import LAB as find_longest_cache_hit

CHAPTER = Chapter(topic="Known prefixes", needs=("03",), labs=(find_longest_cache_hit,))
