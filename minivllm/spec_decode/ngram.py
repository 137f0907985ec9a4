"""N-gram proposer (prompt lookup): drafts copied from behind an earlier occurrence.

No model guesses here. Answers repeat their prompt (a table's row, a name, a tool's form), so the
draft is copied from the text itself. ``propose`` is the rule; ``NgramIndex`` gives the same answer
without reading the whole text again in every step. (vLLM: vllm/v1/spec_decode/ngram_proposer.py)
"""

from __future__ import annotations

from collections.abc import Sequence


def propose(tokens: Sequence[int], min_n: int, max_n: int, k: int, max_model_len: int) -> list[int]:
    """Draft what may come next: the tokens behind an earlier occurrence of the last few.

    The longest suffix of ``min_n`` to ``max_n`` tokens that has occurred before counts, and of its
    occurrences the earliest; it may overlap the suffix. On the text read backwards suffixes are
    prefixes, so this is the failure function of Knuth, Morris and Pratt: linear in the text,
    whatever ``max_n``.

    Args:
        tokens: prompt and output so far.
        min_n, max_n: the shortest and the longest suffix that is looked up.
        k: how many tokens to draft.
        max_model_len: the longest sequence; nothing is drafted beyond it.

    Returns:
        At most ``k`` tokens, fewer at the end of the text; none if nothing is found.
    """
    n = len(tokens)
    k = min(k, max_model_len - n)
    if k <= 0 or n < min_n:
        return []
    text = tokens[::-1]
    failure = [0] * max_n  # of each prefix: its longest other prefix that it ends with
    length = longest = start = 0
    for i in range(1, n):
        if length == max_n:
            length = failure[max_n - 1]
        while length and text[i] != text[length]:
            length = failure[length - 1]
        if text[i] == text[length]:
            length += 1
        if i < max_n:
            failure[i] = length
        if length >= longest:  # of equals the last one: the first in the order of reading
            longest, start = length, n - 1 - i
    if longest < min_n:
        return []
    return list(tokens[start + longest : start + longest + k])


class NgramIndex:
    """Every n-gram of a growing text and where it first ended: an online suffix automaton.

    A state stands for all n-grams that end at the same places; ``link`` leads to the longest of
    their suffixes that ends at more. A token is added in constant time (amortized), however long
    the text and whatever ``max_n``. (Blumer et al. 1985, "The smallest automaton recognizing the
    subwords of a text")

    Args:
        max_n: the longest suffix that is looked up.
    """

    def __init__(self, max_n: int):
        self.max_n = max_n
        self.num_tokens = 0
        self.found_length = 0  # of the longest suffix, up to max_n, that has occurred before
        self._found = 0  # the state that it is in
        self._next: list[dict[int, int]] = [{}]  # by state: where a token leads
        self._link = [-1]
        self._length = [0]  # of the longest n-gram of a state
        self._first_end = [0]  # how many tokens there were when it first occurred
        self._whole = 0  # the state of the whole text

    @property
    def first_end(self) -> int:
        """First end of the found suffix: the index of the token that followed it there."""
        return self._first_end[self._found]

    def append(self, token_id: int) -> None:
        """Append a token to the text."""
        self._find(token_id)  # first: a suffix is not to be found in itself
        self._add(token_id)
        if self.found_length > self.max_n:
            self.found_length = self.max_n
        # Where a state was split, or a long suffix cut, the rest of it is further up.
        while self._length[self._link[self._found]] >= self.found_length > 0:
            self._found = self._link[self._found]

    def _find(self, token_id: int) -> None:
        state, length = self._found, self.found_length
        while state >= 0 and token_id not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        if state < 0:
            self._found = self.found_length = 0
        else:
            self._found, self.found_length = self._next[state][token_id], length + 1

    def _add(self, token_id: int) -> None:
        self.num_tokens += 1
        new = self._state({}, self.num_tokens, self.num_tokens)
        state, self._whole = self._whole, new
        while state >= 0 and token_id not in self._next[state]:
            self._next[state][token_id] = new
            state = self._link[state]
        if state < 0:
            self._link[new] = 0
            return
        old = self._next[state][token_id]
        if self._length[old] > self._length[state] + 1:  # only its short n-grams end here, too
            short = self._state(
                dict(self._next[old]), self._length[state] + 1, self._first_end[old]
            )
            self._link[short], self._link[old] = self._link[old], short
            while state >= 0 and self._next[state].get(token_id) == old:
                self._next[state][token_id] = short
                state = self._link[state]
            old = short
        self._link[new] = old

    def _state(self, leads_to: dict[int, int], length: int, first_end: int) -> int:
        self._next.append(leads_to)
        self._link.append(0)
        self._length.append(length)
        self._first_end.append(first_end)
        return len(self._next) - 1
