"""Exercises of notebook 16: what a stream gives out, who promises what, what a tool loop costs."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from minivllm.lab.exercises.answers import NotYet, whole_numbers
from minivllm.lab.exercises.exercise import Exercise, seeded

# -- core: what comes out at each piece --------------------------------------------------------

_TOOLS = (("get_weather", "city"), ("find_train", "to"), ("play_song", "title"))
_VALUES = ("Rome", "Kyoto", "Lima", "Oslo")


@seeded(difficulty=2, minutes=5)
def deltas(rng: Random) -> Exercise:
    """Output of a tool parser at each piece."""
    (name, key), value = rng.choice(_TOOLS), rng.choice(_VALUES)
    tag = "<tool_call>"
    text = f"{rng.choice(['Sure. ', 'One moment: ', 'I will look. '])}{tag}\n"
    text += f'{{"name": "{name}", "arguments": {{"{key}": "{value}"}}}}\n</tool_call>'
    begin, arguments, closing = text.index(tag), text.index(f'{{"{key}'), text.index("</tool")
    cuts = [
        begin + rng.randint(2, 6),
        text.index(name) + rng.randint(1, len(name) - 1),
        arguments + rng.randint(2, 2 + len(key)),
        text.index(value) + rng.randint(1, len(value) - 1),
        closing - 3,  # before both braces, or
        closing - 2,  # between them
        closing + rng.randint(2, 9),
    ]
    del cuts[rng.choice([4, 5])]
    pieces = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    return Exercise(
        _check_deltas,
        "Content waits if its end may become a tag; arguments begin with their brace, and the last "
        "brace waits for the end of the call.",
        _solve_deltas,
        "A Hermes parser is fed with these pieces. What does it give out at each of them, as "
        "content or as arguments? Answer with a list of strings, one for each piece, '' for "
        "nothing. The call's name does not count.",
        {"pieces": pieces},
    )


def _solve_deltas(pieces):
    text = "".join(pieces)
    call = text.index("<tool_call>")  # what is before it is content
    begin = text.index("{", text.index('"arguments"'))
    end = text.index("}", begin)  # the last brace of the arguments

    def sure(length):
        """Content and arguments that are out after this many characters."""
        out = text[: min(length, call)]
        if length > begin:
            out += text[begin : min(length, end)]
        return out + text[end] if length == len(text) else out

    given, length = [], 0
    for piece in pieces:
        given.append(sure(length + len(piece))[len(sure(length)) :])
        length += len(piece)
    return given


def _check_deltas(answer, pieces) -> str:
    ok = isinstance(answer, (list, tuple)) and all(isinstance(words, str) for words in answer)
    if not ok or len(answer) != len(pieces):
        raise NotYet(f"give a list of {len(pieces)} strings, one for each piece.")
    given = zip(answer, _solve_deltas(pieces), pieces, strict=True)
    for number, (mine, right, piece) in enumerate(given, 1):
        where = f"piece {number}, {piece!r}"
        if mine == right:
            continue
        if "<" in mine:
            raise NotYet(f"{where}: a tag, and what may become one, is no content.")
        if mine == right + "}" or (mine.endswith("}") and not right):
            raise NotYet(f"{where}: the call could still turn out to be none; a brace waits.")
        if '"name"' in mine or '"arguments"' in mine:
            raise NotYet(f"{where}: only what stands in the arguments' own braces are arguments.")
        if len(mine) < len(right):
            raise NotYet(f"{where}: something is sure here that you hold back.")
        raise NotYet(
            f"{where}: {mine!r} is not what is sure by now.",
            f"{where}: {right!r} is sure by now, not {mine!r}.",
        )
    return "joined, the pieces are what a parser of the whole text finds."


# -- stretch: who promises what ----------------------------------------------------------------

_STATEMENTS = {
    "A": "there is a call",
    "B": "each call's name is one of the tools'",
    "C": "each call's arguments satisfy the tool's schema",
    "D": "finish_reason is 'tool_calls' if there is a call",
}


@seeded(difficulty=3, minutes=8)
def promises(rng: Random) -> Exercise:
    """Guarantees of a server about tool calls."""
    given = {
        "tool_choice": rng.choice(["auto", "required", "a name"]),
        "tool_strict_level": rng.choice(["auto", "function", "parameter"]),
        "strict": rng.choice([True, False, False]),
    }
    lines = "; ".join(f"{letter}: {words}" for letter, words in _STATEMENTS.items())
    return Exercise(
        _check_promises,
        "Two questions: is there a grammar, and does it hold the schema?",
        _solve_promises,
        "A request, with one tool that says strict or does not, comes to a server with this level. "
        "Its answer ends by itself, with whatever text. Which of these are guaranteed? "
        f"{lines}. Answer with a string of letters.",
        given,
    )


def _solve_promises(tool_choice, tool_strict_level, strict):
    forced = tool_choice != "auto"
    answer = "A" if forced else ""
    if forced or strict or tool_strict_level != "auto":  # a grammar holds the form of a call
        answer += "B"
    if strict or tool_strict_level == "parameter":  # and the schema
        answer += "C"
    return answer if tool_choice == "a name" else answer + "D"


_REASONS = {
    "A": ("with auto the model may answer in words", "the grammar lets nothing but a call pass"),
    "B": (
        "no grammar watches a call here, so the model may make up a name",
        "a grammar holds what follows <tool_call> to the tools' names",
    ),
    "C": (
        "the schema is held by level parameter, or for a tool that says strict",
        "the schema is part of the grammar here",
    ),
    "D": (
        "for a tool that was named the reason stays 'stop'",
        "a call makes 'tool_calls' of 'stop', but for a tool that was named",
    ),
}


def _check_promises(answer, **given) -> str:
    if not isinstance(answer, str) or not {*answer} <= {*_STATEMENTS}:
        raise NotYet("give a string of letters from A to D, like 'BD'; '' is none of them.")
    right = _solve_promises(**given)
    for letter, (why_not, why) in _REASONS.items():
        if letter in answer and letter not in right:
            raise NotYet(f"{letter} is not guaranteed: {why_not}.")
        if letter in right and letter not in answer:
            raise NotYet(f"{letter} is guaranteed: {why}.")
    return "the model has to be good only at what no grammar holds."


# -- design: what a loop of calls costs --------------------------------------------------------

_BLOCK = 16


@seeded(difficulty=3, minutes=10)
def rounds(rng: Random) -> Exercise:
    """How many prompt tokens does a conversation with several calls compute?"""
    return Exercise(
        _check_rounds,
        "Each round is a request of its own, with all that was said before; full blocks are found.",
        _solve_rounds,
        "An assistant calls num_calls tools, one after another, and then answers in words. Each "
        "request's prompt is the one before, the call, and its result. How many prompt tokens are "
        f"computed in all, without prefix caching and with it (blocks of {_BLOCK}, an empty cache "
        "at first, nothing evicted)? Answer with both numbers. The last token of an answer is "
        "sampled and not computed.",
        {
            "prompt_tokens": rng.randrange(230, 400),
            "call_tokens": rng.randrange(20, 40),
            "result_tokens": rng.randrange(15, 90),
            "num_calls": rng.randint(2, 6),
        },
    )


def _solve_rounds(prompt_tokens, call_tokens, result_tokens, num_calls):
    without = with_cache = length = prompt_tokens
    for _ in range(num_calls):
        in_cache = length + call_tokens - 1  # all of the last request, but its last token
        length += call_tokens + result_tokens
        without += length
        with_cache += length - in_cache // _BLOCK * _BLOCK
    return without, with_cache


def _check_rounds(answer, **given) -> str:
    answer = whole_numbers(answer, ["without the cache", "with it"])
    right = _solve_rounds(**given)
    num_requests = given["num_calls"] + 1
    whys = (
        f"there are {num_requests} requests, and each computes all of its prompt",
        "a request finds the full blocks of what the one before has computed, its prompt and its "
        "call but for the last token",
    )
    for where, got, tokens, why in zip(
        ("without the cache", "with the cache"), answer, right, whys, strict=True
    ):
        if got != tokens:
            more = "more" if got < tokens else "less"
            raise NotYet(
                f"{where} it is {more}: {why}.", f"{where} it is {tokens}, not {got}: {why}."
            )
    return f"{right[0] / right[1]:.1f} times fewer: a tool loop lives on the prefix cache."
