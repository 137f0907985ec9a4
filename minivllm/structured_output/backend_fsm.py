"""Backend "fsm": our own automaton, for choices and regular expressions (notebook 15).

A token may come in a state if its bytes lead on from there. All tokens are tried at once: they are
a trie, and a level of it is read with one indexing. Masks are kept, and states that no token tells
apart share one: in ``[a-z]{400}`` all but the last few do. So most masks are look-ups.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from minivllm.structured_output.backend_types import StructuredOutputGrammar, num_words
from minivllm.structured_output.dfa import DEAD, DFA, MAX_DFA_STATES
from minivllm.structured_output.regex import UnsupportedRegex
from minivllm.structured_output.vocabulary import Vocabulary

_MAX_MASKS = 1024  # kept per automaton


class TokenAutomaton:
    """A DFA that reads tokens: the index from states to allowed tokens.

    Args:
        dfa: over bytes.
        vocabulary: the tokens as bytes.
    """

    def __init__(self, dfa: DFA, vocabulary: Vocabulary):
        self.dfa = dfa
        self.vocabulary = vocabulary
        self._dead = dfa.num_states  # a row more, which leads to itself
        table = np.array([*dfa.rows, [DEAD] * len(dfa.rows[0])], dtype=np.int64)
        table[table == DEAD] = self._dead
        # one number per state and column: where that entry's state begins in this same table
        self._num_columns = table.shape[1]
        self._table = (table * self._num_columns).ravel()
        column = np.array(dfa.byte_class, dtype=np.int64)
        self._columns = [column[level.last_bytes] for level in vocabulary.trie]
        self._representatives = _indistinguishable(table, len(vocabulary.trie))
        self._mask = lru_cache(_MAX_MASKS)(self._compute_mask)

    def allowed(self, state: int) -> np.ndarray:
        """Tokens whose bytes lead on from a state: bool ``[vocab]``."""
        allowed = np.zeros(len(self.vocabulary), dtype=bool)
        states = np.array([state * self._num_columns])
        dead = self._dead * self._num_columns
        for level, columns in zip(self.vocabulary.trie, self._columns, strict=True):
            states = self._table[states[level.parents] + columns]
            alive = states != dead
            if not alive.any():
                break
            allowed[level.token_ids] = alive[level.ends]
        return allowed

    def mask(self, state: int) -> np.ndarray:
        """The bitmask of a state: ``allowed`` as bits, int32 ``[words]``. Not to be changed."""
        return self._mask(self._representatives[state])

    def _compute_mask(self, state: int) -> np.ndarray:
        bits = np.packbits(self.allowed(state), bitorder="little")
        mask = np.zeros(num_words(len(self.vocabulary)), dtype=np.int32)
        mask.view(np.uint8)[: len(bits)] = bits
        return mask


def _indistinguishable(table: np.ndarray, max_length: int) -> list[int]:
    """Equivalence classes of states: for each state, the first from which the same tokens lead on.

    Moore's minimization, ended early: after round ``k`` two states are apart if some ``k`` bytes
    lead on from one of them and not from the other, and no token has more than ``max_length``.

    Args:
        table: the next state by state and column; the last state is the dead one.
        max_length: bytes of the longest token.
    """
    dead = len(table) - 1
    classes = [0] * dead + [dead]
    num_classes = 2
    for _ in range(max_length):
        of_state = np.array(classes, dtype=np.uint16)
        rows = np.column_stack((of_state, of_state[table]))  # its class and those of its edges
        keys = rows.view(f"V{rows.dtype.itemsize * rows.shape[1]}").ravel().tolist()
        first: dict[bytes, int] = {}
        classes = [first.setdefault(key, state) for state, key in enumerate(keys)]
        if len(first) == num_classes:
            break
        num_classes = len(first)
    return classes


class FsmGrammar(StructuredOutputGrammar):
    """The states of one sequence in a token automaton.

    Args:
        automaton: shared by all sequences with the same pattern.
        stop_token_ids: where the text may end, these may come.
        states: where it began, and the state after each token.
    """

    def __init__(
        self, automaton: TokenAutomaton, stop_token_ids: frozenset[int], states: list[int]
    ):
        super().__init__(stop_token_ids)
        self.automaton = automaton
        self.states = states

    @property
    def state(self) -> int:
        return self.states[-1]

    def fork(self, stop_token_ids: frozenset[int] | None = None) -> FsmGrammar:
        stops = self.stop_token_ids if stop_token_ids is None else stop_token_ids
        child = FsmGrammar(self.automaton, stops, list(self.states))
        child._num_after_end = self._num_after_end
        return child

    def may_end(self) -> bool:
        return self.automaton.dfa.accepting[self.state]

    def forced_tokens(self) -> list[int]:
        forced = b"" if self.is_terminated() else self.automaton.dfa.forced_bytes(self.state)
        text = forced.decode(errors="ignore")  # half a character at the end is left for later
        if not text:
            return []
        tokens = self.automaton.vocabulary.encode(text)
        if not self.automaton.dfa.accepting[self.automaton.dfa.run(forced, self.state)]:
            tokens = tokens[:-1]  # what comes after may want to be one token with the last
        return self.validate_tokens(tokens)

    def _advance(self, token: int) -> bool:
        data = self.automaton.vocabulary.tokens[token]
        state = self.automaton.dfa.run(data, self.state) if data else DEAD
        if state == DEAD:
            return False
        self.states.append(state)
        return True

    def _take_back(self, num_tokens: int) -> None:
        del self.states[len(self.states) - num_tokens :]

    def _fill(self, row: np.ndarray) -> None:
        row[:] = self.automaton.mask(self.state)


class FsmBackend:
    """Compiles choices and regular expressions for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary

    def compile_grammar(self, value: str | list[str]) -> FsmGrammar:
        """Compile a grammar, at its start.

        Args:
            value: a regular expression, or texts to choose from.

        Raises:
            UnsupportedRegex: if no automaton can do it, or a choice is too large for one.
            ValueError: if it is no regular expression, or too large.
        """
        if isinstance(value, list):
            size = sum(len(text.encode()) for text in value)
            if size >= MAX_DFA_STATES:
                raise UnsupportedRegex(
                    f"choice must be texts of under {MAX_DFA_STATES:,} bytes for the backend "
                    f"'fsm', got {size:,} bytes."
                )
            value = "|".join(re.escape(text) for text in value)
        return FsmGrammar(TokenAutomaton(DFA(value), self.vocabulary), frozenset(), [0])
