"""From samples to tokens: ids, loss weights and pointers, all as token positions."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from tokenizers import Tokenizer

from minivllm.embedded.data.sample import Sample, Span


@dataclass
class Encoded:
    """A tokenized sample.

    ``weights[i]`` is the weight of predicting ``ids[i]`` (from the tokens before it).
    ``pointers[kind]`` lists ``(query, first key, end of keys)`` token positions, ``answers`` lists
    ``(label, first token, end)`` of what an evaluation scores. ``copied[i]`` tells whether
    ``ids[i]`` belongs to a row of a table, or to something that is copied.
    """

    skill: str
    ids: list[int]
    weights: list[float]
    pointers: dict[str, list[tuple[int, int, int]]]
    answers: list[tuple[str, int, int]]
    copied: list[bool]


def encode(tokenizer: Tokenizer, sample: Sample) -> Encoded:
    """Tokenize a sample and translate its character spans."""
    text = tokenizer.encode(sample.text, add_special_tokens=False)
    ids, (starts, ends) = text.ids, zip(*text.offsets, strict=True)

    def tokens(span: Span) -> tuple[int, int]:
        """The range of tokens that overlap a span of characters."""
        return bisect_right(ends, span[0]), bisect_left(starts, span[1])

    weights = [0.0] * len(ids)
    for span, weight in sample.learnt:
        first, stop = tokens(span)
        weights[first:stop] = [weight] * (stop - first)
    pointers: dict[str, list[tuple[int, int, int]]] = {}
    for copy in sample.copies:
        first, stop = tokens(copy.target)
        source, source_stop = tokens(copy.source)
        if stop - first != source_stop - source or first == 0:
            continue
        steps = stop - first + copy.closes
        pointers.setdefault(copy.kind, []).extend(
            (first - 1 + step, source + step, source + step + 1) for step in range(steps)
        )
    for gather in sample.gathers:
        source, source_stop = tokens(gather.source)
        pointers.setdefault(gather.kind, []).extend(
            (query, source, min(source_stop, query + 1))
            for query in range(*tokens(gather.target))
            if query >= source
        )
    answers = [(label, *tokens(span)) for label, span in sample.answers]
    copied = [False] * len(ids)
    for span in sample.copied_spans():
        first, stop = tokens(span)
        copied[first:stop] = [True] * (stop - first)
    return Encoded(sample.skill, ids, weights, pointers, answers, copied)
