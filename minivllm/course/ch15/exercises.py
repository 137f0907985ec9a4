"""Exercises of notebook 15: what may come next, how many states, a pattern and all its texts."""

from __future__ import annotations

import re
from random import Random

from minivllm.course.asking.answers import NotYet, whole_number
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.structured_output.dfa import DEAD, DFA

END = "<end>"  # stands for the end-of-sequence token


# -- core: what may come next ------------------------------------------------------------------

_PATTERNS = (
    (r"\d{3}-\d{4}", ("555-0199", "212-7788")),
    (r"-?\d{1,3}(\.\d{2})?", ("-12.50", "7.25", "130")),
    (r'\{"name": "[a-z]+", "age": \d{1,3}\}', ('{"name": "maria", "age": 34}',)),
    (r"(yes|no)( \(\d+%\))?", ("yes (80%)", "no")),
    (r"[A-Z][a-z]*(, [A-Z][a-z]*)*", ("Rome, Paris", "Oslo")),
)


@seeded(difficulty=2, minutes=6)
def allowed(rng: Random) -> Exercise:
    """Which of these tokens may come next?"""
    while True:
        pattern, texts = rng.choice(_PATTERNS)
        text = rng.choice(texts)
        so_far = text[: rng.randrange(1, len(text))]
        tokens = _tokens_near(rng, text, len(so_far))
        right = _solve_allowed(pattern, so_far, tokens)
        if 2 <= len(right) <= 6:
            break
    return Exercise(
        _check_allowed,
        "Append the token to the text: is there anything that makes a match of it? "
        f"{END} may come only where the text is a match already.",
        _solve_allowed,
        "A text must match the whole pattern. After the text so far, which of these tokens may "
        f"come next ({END} ends the text)? Answer with a string of letters.",
        {"pattern": pattern, "so_far": so_far, "tokens": tokens},
    )


def _tokens_near(rng: Random, text: str, at: int) -> dict[str, str]:
    """Eight tokens like what follows in the text: pieces of it, some of them spoiled."""
    found: set[str] = set()
    while len(found) < 7:
        piece = (text + text)[at : at + rng.randint(1, 4)]
        if rng.random() < 0.6:  # another character somewhere
            place = rng.randrange(len(piece))
            piece = piece[:place] + rng.choice('0359ae",.-}') + piece[place + 1 :]
        found.add(piece)
    tokens = [*sorted(found), END]
    rng.shuffle(tokens)
    return dict(zip("ABCDEFGH", tokens, strict=True))


def _solve_allowed(pattern, so_far, tokens):
    dfa = DFA(pattern)
    state, right = dfa.run(so_far.encode()), ""
    for letter, token in tokens.items():
        if token == END:
            may_come = dfa.accepting[state]
        else:
            may_come = dfa.run(token.encode(), state) != DEAD
        right += letter if may_come else ""
    return right


def _check_allowed(answer, pattern, so_far, tokens) -> str:
    if not isinstance(answer, str) or not answer or not {*answer} <= {*tokens}:
        raise NotYet("give a string of letters from A to H, like 'AB'.")
    right = _solve_allowed(pattern, so_far, tokens)
    dfa = DFA(pattern)
    for letter, token in tokens.items():
        if letter in answer and letter not in right:
            if token == END:
                raise NotYet(f"{letter}: {so_far!r} does not match yet, so it may not end here.")
            first = dfa.run((so_far + token[0]).encode()) != DEAD
            only = f" Its first character alone, {token[0]!r}, could come." * first
            raise NotYet(f"{letter}: no text that matches begins with {so_far + token!r}.{only}")
        if letter in right and letter not in answer:
            if token == END:
                raise NotYet(f"one is missing: {so_far!r} matches as it is.")
            example = so_far + token
            example += _shortest_end(dfa, dfa.run(example.encode()))
            raise NotYet(f"one is missing: {example!r} is a match.")
    return f"{len(right)} of 8; a mask says the same of all tokens of a vocabulary."


def _shortest_end(dfa: DFA, state: int) -> str:
    """The shortest text that leads from a state to an end."""
    ends = {state: b""}
    waiting = [state]
    for at in waiting:
        if dfa.accepting[at]:
            return ends[at].decode()
        for byte in range(256):
            target = dfa.next_state(at, byte)
            if target != DEAD and target not in ends:
                ends[target] = ends[at] + bytes([byte])
                waiting.append(target)
    raise AssertionError("every state of a DFA leads to an end")


# -- stretch: how many states ------------------------------------------------------------------


@seeded(difficulty=3, minutes=8)
def states(rng: Random) -> Exercise:
    """How many states does the smallest automaton have?"""
    low = rng.randint(2, 5)
    high = low + rng.randint(1, 4)
    pattern = rng.choice(
        [f"a{{{low},{high}}}b?", f"a+b{{{low},{high}}}", f"(ab){{{low},{high}}}",
         f"a*b{{{high}}}", f"a{{{low}}}(b|c)+"]
    )  # fmt: skip
    return Exercise(
        _check_states,
        "Two texts lead to the same state if exactly the same texts may follow them.",
        _solve_states,
        "How many states does the automaton of this pattern have, if it has no more than it "
        "needs? Do not count the one from which nothing leads to a match.",
        {"pattern": pattern},
    )


def _solve_states(pattern):
    return DFA(pattern).num_states


def _check_states(answer, pattern) -> str:
    number = whole_number(answer)
    right = _solve_states(pattern)
    if number == right + 1:
        raise NotYet("one too many: do not count the dead end, and merge what reads alike.")
    if number > right:
        raise NotYet("too many: some of your states let exactly the same texts follow.")
    if number < right:
        start = " The state before the first character counts, too." * (number == right - 1)
        raise NotYet(f"too few: two of your states let different texts follow.{start}")
    return f"one for each of {right} answers to the question what may still come."


# -- design: a pattern, and all its texts ------------------------------------------------------


@seeded(difficulty=3, minutes=12)
def phone(rng: Random) -> Exercise:
    """Write a regular expression for a country's phone numbers."""
    return Exercise(
        _check_phone,
        "Write what must be there, put what may be missing into (...)?, and a backslash before "
        "each of . + ( ).",
        _solve_phone,
        "Write a regular expression for phone numbers: groups of this many digits, with the "
        "separator between them. An area code may come first: two or three digits in brackets, "
        "and a blank. Only where there is an area code, + and the country's number and a blank "
        "may come before it. Nothing else matches.",
        {
            "digits": rng.choice([(3, 4), (2, 2, 2), (4, 4)]),
            "separator": rng.choice(["-", " ", "."]),
            "country": rng.randint(2, 98),
        },
    )


def _solve_phone(digits, separator, country):
    number = re.escape(separator).join(rf"\d{{{n}}}" for n in digits)
    return rf"((\+{country} )?\(\d{{2,3}}\) )?{number}"


def _check_phone(answer, **given) -> str:
    if not isinstance(answer, str) or not answer:
        raise NotYet("give a regular expression, as a string.")
    try:
        mine = DFA(answer)
    except ValueError as error:
        raise NotYet(f"the automaton refuses it: {error}") from error
    text = _first_difference(mine, right := DFA(_solve_phone(**given)))
    if text is not None:
        must = f"{text!r} must {'' if right.matches(text) else 'not '}match"
        raise NotYet(f"{must}{_reason(text, **given)}.")
    return "no text tells your automaton from the right one; all pairs of states were compared."


def _reason(text: str, digits, separator, country) -> str:
    """Return what a text shows, where it can be said."""
    number = re.escape(separator).join(rf"\d{{{n}}}" for n in digits)
    if re.fullmatch(rf"\+{country} {number}", text):
        return ": the country's number comes only before an area code"
    if re.fullmatch(number, text):
        return ": the area code may be missing"
    if re.fullmatch(rf"\(\d{{2,3}}\) {number}", text):
        return ": the country's number may be missing"
    if re.fullmatch(r"\d*", text):
        groups = " and ".join(map(str, digits))
        return f": a number has groups of {groups} digits with {separator!r} between them"
    return ""


def _first_difference(one: DFA, other: DFA) -> str | None:
    """The shortest text that only one of two automata accepts, if there is any."""
    ways = {(0, 0): b""}
    waiting = [(0, 0)]
    for pair in waiting:
        ends = [
            state != DEAD and dfa.accepting[state]
            for dfa, state in zip((one, other), pair, strict=True)
        ]
        if ends[0] != ends[1]:
            return ways[pair].decode()
        for byte in range(256):
            onward = one.run(bytes([byte]), pair[0]), other.run(bytes([byte]), pair[1])
            if onward != (DEAD, DEAD) and onward not in ways:
                ways[onward] = ways[pair] + bytes([byte])
                waiting.append(onward)
    return None
