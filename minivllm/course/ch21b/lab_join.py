"""Lab of notebook 21b: the slot of a stream, held to streams that are read late."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault


def my_join(pending, output, delta):
    """Return what waits for a reader after one more output has come: a stream's only slot.

    Args:
        pending: what has not been read yet; None if everything has. Outputs are dicts with "text",
            "token_ids" and "finish_reason" (None while it goes on).
        output: what has come now: such a dict, or an Exception that ends the stream.
        delta: True if an output holds what is new only; False if it holds everything so far.

    Nothing that is new may be lost, and nothing may come twice. An exception takes the place of
    whatever waits. Do not change pending or output: the engine may still use them.

    Returns: what the reader gets next.
    """
    raise NotImplementedError


def join(pending, output, delta):
    joins = delta and isinstance(pending, dict) and isinstance(output, dict)
    if not joins:
        return output
    return {
        "text": pending["text"] + output["text"],
        "token_ids": [*pending["token_ids"], *output["token_ids"]],
        "finish_reason": output["finish_reason"],
    }


def check_join(function: Callable, seed: int) -> str:
    """Streams that are read late: every token once, in order, and the reason at the end."""
    rng = Random(f"lab join {seed}")
    streams = 0
    for delta in (True, False):
        for _ in range(40):
            _check_stream(function, rng, delta)
            streams += 1
    error = ValueError("the engine has stopped")
    for pending in (None, _output("a", [1]), error):
        got = call(function, pending, error, True)
        if got is not error:
            raise WrongEntry(f"when {pending!r} waits and an error comes, {got!r} is next", "it")
    return f"{streams} streams arrive whole, however late they are read"


def _output(text: str, token_ids: list[int], finish_reason: str | None = None) -> dict:
    return {"text": text, "token_ids": token_ids, "finish_reason": finish_reason}


def _check_stream(function: Callable, rng: Random, delta: bool) -> None:
    letters = [rng.choice("abcdefgh") for _ in range(rng.randint(1, 9))]
    pending = None
    right = None
    so_far = ""
    for index, letter in enumerate(letters):
        so_far += letter
        reason = "length" if index == len(letters) - 1 else None
        text = letter if delta else so_far
        output = _output(text, [ord(c) for c in text], reason)
        kept = deepcopy((pending, output))
        got = call(function, pending, output, delta)
        if (pending, output) != kept:
            raise Fault(f"{kept[0]} waits and {kept[1]} comes: one of them has been changed")
        text = (right["text"] if delta and right else "") + text
        right = _output(text, [ord(c) for c in text], reason)
        if got != right:
            kind = "deltas" if delta else "outputs so far"
            waits = "nothing waits" if pending is None else f"{pending} waits"
            wrong = f"{kind}: {waits} and {output} comes; {got!r} is next"
            raise WrongEntry(f"{wrong}{_explain(got, right, delta)}", f"{right}")
        pending = got
        if rng.random() < 0.4:  # the reader takes it
            pending = None
            right = None


def _explain(got: Any, right: dict, delta: bool) -> str:
    """Return what a wrong output forgets."""
    if not isinstance(got, dict) or got.keys() != right.keys():
        return ""
    if got["finish_reason"] != right["finish_reason"]:
        return ": the finish_reason is that of the newer one"
    if delta:
        return ": nothing of it was read yet, so both texts and both lists of tokens are needed"
    return ": an output so far holds all that came before; the older one is out of date"


LAB = FunctionLab(
    "21b",
    "Write the slot that joins what a late reader has not read.",
    "When is what waits out of date, and when is it a part of what the reader must get?",
    difficulty=2, minutes=10, stub=my_join, check=check_join,
)  # fmt: skip
