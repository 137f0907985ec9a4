"""Lab of notebook 15: the mask of structured outputs, held to the engine's own automaton."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault


def my_mask(table, accepting, tokens, stop_token_ids, state):
    """Which tokens may come next, where an automaton over bytes is in some state?

    Args:
        table: by state a dict, from a byte to the next state. Where a byte is missing, no text that
            matches goes on with it.
        accepting: by state, whether the text may end there.
        tokens: by id the bytes of each token; None for what is no text.
        stop_token_ids: ids that end the text. They may come where it may end. One of them may be
            text as well, and then it may also come as text.
        state: the state now.

    Returns: a set of token ids.
    """
    raise NotImplementedError


def mask(table, accepting, tokens, stop_token_ids, state):
    def leads_on(token):
        at = state
        for byte in token:
            if byte not in table[at]:
                return False
            at = table[at][byte]
        return True

    allowed = {i for i, token in enumerate(tokens) if token is not None and leads_on(token)}
    return allowed | set(stop_token_ids) if accepting[state] else allowed


_TOKENS = (
    None, b"a", b"b", b"ab", b"ba", b"aba", b"1", b"12", b"2", b".", b"1.", b".2", b"\xc3",
    b"\xa9", b"\xc3\xa9", b"\xa9a", b"b1", b"!", None, b"aaaa",
)  # fmt: skip
_PATTERNS = (r"(ab)+", r"a{2,4}b?", r"[12]+(\.2)?!?", "(é|a)*b", "(a|b)*abb", ".{1,3}", "!?a")
_PIECES = ("(ab)+", "a{2,4}", "b?", "[12]+", r"(\.2)?", "(é|a)*", "(a|b)*", ".{1,2}", "!?", "b")


def _drawn_patterns(seed: int) -> list[str]:
    rng = Random(f"lab mask {seed}")
    return ["".join(rng.sample(_PIECES, rng.randint(2, 4))) for _ in _PATTERNS]


def check_mask(function: Callable, seed: int) -> str:
    from minivllm.structured_output.backend_fsm import TokenAutomaton
    from minivllm.structured_output.dfa import DEAD, DFA
    from minivllm.structured_output.vocabulary import Vocabulary

    stops = {0, _TOKENS.index(b"!")}
    places = 0
    vocabulary = Vocabulary(list(_TOKENS), frozenset([0]), lambda text: [])
    for pattern in _drawn_patterns(seed) if seed else _PATTERNS:
        dfa = DFA(pattern)
        automaton = TokenAutomaton(dfa, vocabulary)
        table = [
            {b: row[c] for b, c in enumerate(dfa.byte_class) if row[c] != DEAD} for row in dfa.rows
        ]
        for state, ends in enumerate(dfa.accepting):
            right = {int(i) for i in automaton.allowed(state).nonzero()[0]}
            right |= stops if ends else set()
            accepting = list(dfa.accepting)
            got = call(function, table, accepting, list(_TOKENS), set(stops), state)
            if not isinstance(got, (set, frozenset)):
                raise Fault("return a set of token ids")
            for i in sorted({*got} ^ right):
                where = f"{pattern!r}, state {state}: token {i}, {_TOKENS[i]}"
                verdict = "may come" if i in right else "may not come"
                why = _explain(i, i in right, stops, ends)
                raise WrongEntry(f"{where}, is judged wrongly: {why}", f"that it {verdict}")
            places += 1
    return f"the engine's own masks in {places} states, broken characters and ends included"


def _explain(token: int, may_come: bool, stops: set[int], ends: bool) -> str:
    """Return the rule for this token."""
    if token in stops and (ends or _TOKENS[token] is None):
        return f"it ends the text, and this state does {'' if ends else 'not '}accept"
    if _TOKENS[token] is None:
        return "it has no bytes"
    if may_come:
        return "all of its bytes lead on from this state"
    return "not all of its bytes lead on from this state"


LAB = FunctionLab(
    "15",
    "Write the mask of structured outputs.",
    "Follow the bytes of each token from the state; one that is missing forbids the token.",
    difficulty=2, minutes=15, stub=my_mask, check=check_mask,
)  # fmt: skip
