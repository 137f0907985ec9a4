"""Exercises of notebook 16: deltas of a stream, what is guaranteed, the cost of a tool loop."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from minivllm.course.asking.answers import NotYet
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: what comes out at each piece --------------------------------------------------------

_TOOLS = (("get_weather", "city"), ("find_train", "to"), ("play_song", "title"))
_VALUES = ("Rome", "Kyoto", "Lima", "Oslo")


@seeded(difficulty=2, minutes=5)
def deltas(rng: Random) -> Exercise:
    """Output of a tool parser at each piece."""
    name, key = rng.choice(_TOOLS)
    value = rng.choice(_VALUES)
    tag = "<tool_call>"
    text = f"{rng.choice(['Sure. ', 'One moment: ', 'I will look. '])}{tag}\n"
    text += f'{{"name": "{name}", "arguments": {{"{key}": "{value}"}}}}\n</tool_call>'
    begin = text.index(tag)
    arguments = text.index(f'{{"{key}')
    closing = text.index("</tool")
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
            raise NotYet(f"{where}: only what is in the arguments' own braces are arguments.")
        if not mine:
            what = "content" if "<" not in "".join(pieces[:number]) else "arguments"
            raise NotYet(f"{where}: something is sure here that you hold back: {what}.")
        if mine == piece:
            raise NotYet(f"{where}: not all of a piece is content or arguments.")
        if len(mine) < len(right):
            raise NotYet(f"{where}: something is sure here that you hold back.")
        raise NotYet(
            f"{where}: {mine!r} is not what is sure by now.",
            f"{where}: {right!r} is sure by now, not {mine!r}.",
        )
    return "joined, the pieces are what a parser of the whole text finds."


# -- stretch: what is guaranteed -----------------------------------------------------------------

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
    calls = [
        (
            rng.randrange(230, 400),
            rng.randrange(20, 40),
            rng.randrange(15, 90),
            rng.randint(2, 6),
        )
        for _ in range(30)
    ]
    return FunctionExercise(
        "An assistant calls num_calls tools, one after another, and then answers in words. Each "
        "request's prompt is the one before, the call, and its result. How many prompt tokens are "
        f"computed in all, without prefix caching and with it (blocks of {_BLOCK}, an empty cache "
        "at first, nothing evicted)? The last token of an answer is sampled and not computed. "
        "Write rounds(prompt_tokens, call_tokens, result_tokens, num_calls); it returns a pair "
        "(without, with caching).",
        "Each round is a request of its own, with all that was said before; full blocks are found.",
        _solve_rounds,
        calls=calls,
        learnt="a tool loop lives on the prefix cache, and more so with each call.",
        mistakes={
            "each call is answered by a request of its own, and its prompt is all that was said.": (
                lambda prompt, call, result, n: (
                    prompt + n * (call + result),
                    _solve_rounds()(prompt, call, result, n)[1],
                )
            ),
            "the last round, with the answer in words, is a request, too.": (
                lambda prompt, call, result, n: _solve_rounds()(prompt, call, result, n - 1)
            ),
            "with caching: only full blocks are found.": lambda *given: (
                _solve_rounds()(*given)[0],
                _with_cache(*given, found=lambda length, call: length + call - 1),
            ),
            "with caching: the last token of a call was sampled and not computed.": lambda *given: (
                _solve_rounds()(*given)[0],
                _with_cache(*given, found=lambda length, call: (length + call) // _BLOCK * _BLOCK),
            ),
            "with caching: the call's tokens were computed, too, and not only the prompt.": (
                lambda *given: (
                    _solve_rounds()(*given)[0],
                    _with_cache(*given, found=lambda length, call: length // _BLOCK * _BLOCK),
                )
            ),
            "with caching: the first prompt is computed, too.": lambda prompt, *rest: (
                _solve_rounds()(prompt, *rest)[0],
                _solve_rounds()(prompt, *rest)[1] - prompt,
            ),
            "without, then with caching: the first number is the larger.": lambda *given: (
                _solve_rounds()(*given)[::-1]
            ),
        },
    )


def _with_cache(prompt_tokens, call_tokens, result_tokens, num_calls, found) -> int:
    """Computed tokens where ``found(length, call_tokens)`` of the last request are in the cache."""
    computed = length = prompt_tokens
    for _ in range(num_calls):
        known = found(length, call_tokens)
        length += call_tokens + result_tokens
        computed += length - known
    return computed


def _solve_rounds():
    def rounds(prompt_tokens, call_tokens, result_tokens, num_calls):
        without = with_cache = length = prompt_tokens
        for _ in range(num_calls):
            in_cache = length + call_tokens - 1  # all of the last request, but its last token
            length += call_tokens + result_tokens
            without += length
            with_cache += length - in_cache // 16 * 16
        return without, with_cache

    return rounds
