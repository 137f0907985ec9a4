"""Exercises of notebook 21b: whole events, what a late reader gets, a client that cuts events."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from minivllm.course.asking.answers import NotYet, number_list
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: whole events --------------------------------------------------------------------------

WORDS = ("2", "+", "is", "4.", "Paris", "of", "the", "café", "naïve", "世界", "🙂")


@seeded(difficulty=1, minutes=5)
def whole_events(rng: Random) -> Exercise:
    """How many events does a client have after each piece?"""
    words = [rng.choice(WORDS[:7]) for _ in range(rng.randint(4, 6))]
    stream = b"".join(_event(word) for word in [*words, "[DONE]"])
    while True:
        pieces = _cut(rng, stream, rng.randint(5, 7))
        new = _new_events(pieces)
        if 0 in new and max(new) > 1:
            break
    return Exercise(
        _check_whole_events,
        "An event is whole when the empty line behind it has come: both of its line ends.",
        _solve_whole_events,
        "A client calls recv, and gets these pieces of a stream of server-sent events, one after "
        "the other. How many whole events does it have after each piece? Answer with a list.",
        {"pieces": pieces},
    )


def _event(text: str) -> bytes:
    return f"data: {text}\n\n".encode()


def _cut(rng: Random, stream: bytes, number: int) -> list[bytes]:
    """Pieces of a stream, cut at random places."""
    places = [0, *sorted(rng.sample(range(1, len(stream)), number - 1)), len(stream)]
    return [stream[a:b] for a, b in pairwise(places)]


def _new_events(pieces: list[bytes]) -> list[int]:
    """Events that become whole with each piece."""
    totals = _solve_whole_events(pieces)
    return [after - before for before, after in pairwise([0, *totals])]


def _solve_whole_events(pieces):
    received, totals = b"", []
    for piece in pieces:
        received += piece
        totals.append(received.count(b"\n\n"))
    return totals


def _check_whole_events(answer, pieces) -> str:
    right = _solve_whole_events(pieces)
    new = _new_events(pieces)
    mine = number_list(answer, "one for each piece")
    if len(mine) != len(right):
        raise NotYet(f"there are {len(right)} pieces: give as many numbers.")
    if mine == new:
        raise NotYet("these are the new ones of each piece; count all so far.")
    begun = [b"".join(pieces[: i + 1]).count(b"data:") for i in range(len(pieces))]
    for index, (got, total) in enumerate(zip(mine, right, strict=True)):
        if got == begun[index] != total:
            raise NotYet(f"after piece {index}: {got} have begun, and the last one is not whole.")
        if got == total - 1 and index == len(pieces) - 1:
            raise NotYet("[DONE] is an event, too, though it is no JSON.")
        if got != total:
            raise NotYet(
                f"after piece {index}: not {got} events.",
                f"after piece {index}: {total} events, not {got}.",
            )
    return f"{len(pieces)} pieces, {right[-1]} events: where recv cuts says nothing about events."


# -- stretch: what a late reader gets ------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def late_reader(rng: Random) -> Exercise:
    """How many tokens does each output hold?"""
    return FunctionExercise(
        "A stream of deltas. tokens_of_step says how many tokens the engine makes in each step "
        "(none while the request is preempted, several where drafts were right). The reader takes "
        "an output after each of the steps in read_after, counted from 1. How many tokens does "
        "each output hold? Write late_reader(tokens_of_step, read_after); it returns a list.",
        "What is new is joined to what has not been read. A read takes all of it.",
        _solve_late_reader,
        calls=[_stream(rng) for _ in range(40)],
        learnt="fewer outputs than tokens: a client that counts events as tokens reports too "
        "little speed.",
        mistakes={
            "these are all tokens so far; a delta holds what is new.": lambda tokens, reads: (
                [sum(tokens[:after]) for after in reads]
            ),
            "an output joins all tokens since the last read.": lambda tokens, reads: (
                [tokens[after - 1] for after in reads]
            ),
            "steps count from 1: read_after 3 is after the third.": lambda tokens, reads: [
                sum(tokens[max(0, before - 1) : after - 1])
                for before, after in zip([0, *reads], reads, strict=False)
            ],
            "a step may make no token, or several.": lambda tokens, reads: [
                after - before for before, after in zip([0, *reads], reads, strict=False)
            ],
            "the step of the last read is in the last output already.": lambda tokens, reads: [
                sum(tokens[max(0, before - 1) : after])
                for before, after in zip([0, *reads], reads, strict=False)
            ],
            "an output is what one read takes, not what one step makes.": lambda tokens, reads: (
                tokens
            ),
            "the first output counts, too.": lambda tokens, reads: _solve_late_reader()(
                tokens, reads
            )[1:],
        },
    )


def _stream(rng: Random) -> tuple[list[int], list[int]]:
    tokens = [rng.choice([0, 1, 1, 1, 2, 3]) for _ in range(rng.randint(9, 13))]
    tokens[0] = tokens[-1] = 1
    reads = [1]
    step = 1
    while step < len(tokens):
        step = min(len(tokens), step + rng.randint(1, 4))
        if sum(tokens[reads[-1] : step]):
            reads.append(step)
    return tokens, reads


def _solve_late_reader():
    def late_reader(tokens_of_step, read_after):
        return [
            sum(tokens_of_step[before:after])
            for before, after in zip([0, *read_after], read_after, strict=False)
        ]

    return late_reader


# -- design: a client that reads events ----------------------------------------------------------


@seeded(difficulty=3, minutes=12)
def read_events(rng: Random) -> Exercise:
    """Write a function that finds the events in pieces of bytes, wherever these are cut."""
    calls = []
    for number in (2, 4, 8, 12, 16):
        words = [rng.choice(WORDS) for _ in range(rng.randint(2, 6))] + ["[DONE]"]
        calls.append((_cut(rng, b"".join(map(_event, words)), number),))
    return FunctionExercise(
        "Write read_events(pieces): pieces of bytes, as recv gives them, cut anywhere. It returns "
        "a list of strings: the data of each event before [DONE], without 'data: '.",
        "Keep the bytes behind the last empty line until the next piece; decode whole events only.",
        _solve_read_events,
        calls=calls,
        learnt="a cut may be inside an event, an empty line or a character: join bytes, not texts.",
        explain=_explain_read_events,
    )


def _solve_read_events():
    def read_events(pieces):
        found, waiting = [], b""
        for piece in pieces:
            *whole, waiting = (waiting + piece).split(b"\n\n")
            found += [event.removeprefix(b"data: ").decode() for event in whole]
        return found[: found.index("[DONE]")]

    return read_events


def _explain_read_events(arguments, got, right) -> None:
    if not isinstance(got, list) or not all(isinstance(text, str) for text in got):
        raise NotYet("read_events returns a list of strings.")
    if got == [*right, "[DONE]"]:
        raise NotYet("[DONE] ends the stream; it is no data.")
    if any("data:" in text for text in got):
        raise NotYet("'data: ' comes before the data of each event and is no part of it.")
    same = (mine == theirs for mine, theirs in zip(got, right, strict=False))
    wrong = next((index for index, equal in enumerate(same) if not equal), len(got))
    if wrong < len(right):
        raise NotYet(
            f"event {wrong}, {right[wrong]!r}, is lost or torn: it came in two pieces, or one "
            "piece held several."
        )
