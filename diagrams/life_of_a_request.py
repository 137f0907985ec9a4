"""The life of a request: the states of a sequence, and what moves it from one to the next."""

from __future__ import annotations

from canvas import BLUE, GREEN, ORANGE, PINK, RED, Canvas

from minivllm.lab.viz.draw.figure import Figure

ALT = (
    "Life of a request: add_request lets it wait; when the whole of it fits it is admitted and "
    "runs, each step computing some of its tokens and drawing one when it has caught up. Without "
    "room it is preempted: recomputed, at the front of the waiting queue with its blocks gone, or "
    "swapped out to the host and back. It ends by a stop, by length or by an abort, and its blocks "
    "are free at once."
)


def draw() -> Figure:
    page = Canvas(
        "The life of a request", "One subtraction drives it: num_tokens − num_computed_tokens is "
        "still to be computed.", ALT, 960, 480,
    )  # fmt: skip
    start = page.box(28, 214, 124, 52, "add_request", ("checked first",), colour=BLUE)
    waiting = page.box(
        214, 204, 178, 72, "WAITING", ("in the policy's order;", "holds no block"), colour=ORANGE
    )
    running = page.box(
        520, 194, 214, 92, "RUNNING",
        ("chunks of its prompt, then", "one token after the other;", "holds blocks"), colour=GREEN,
    )  # fmt: skip
    finished = page.box(816, 204, 120, 72, "FINISHED", ("stop, length", "or abort"), colour=BLUE)
    preempted = page.box(
        372, 366, 178, 72, "PREEMPTED", ("keeps its tokens,", "has computed 0"), colour=RED
    )
    swapped = page.box(
        640,
        366,
        178,
        72,
        "SWAPPED",
        ("what it computed", "is on the host"),
        colour=PINK,
        dashed=True,
    )
    page.arrow([start.right, waiting.left])
    page.arrow(
        [waiting.right, running.left], "admitted: all of it|would fit, less its|cache hit",
        (456, 186),
    )  # fmt: skip
    page.arrow([running.right, finished.left], "blocks freed|at once", (775, 218))
    page.arrow(
        [running.at("top", 0.3), (584.2, 122), (669.8, 122), running.at("top", 0.7)],
        "a step: computes min(what is left, budget) tokens;|caught up → a token is drawn",
        (627, 98),
    )  # fmt: skip
    page.arrow(
        [running.at("bottom", 0.2), (562.8, 402), preempted.right], "no room,|recompute",
        (556, 322), anchor="end",
    )  # fmt: skip
    page.arrow(
        [running.at("bottom", 0.65), (659.1, 366)], "no room, swap:|blocks copied out", (668, 322),
        anchor="start",
    )  # fmt: skip
    page.arrow(
        [preempted.left, (303, 402), waiting.bottom],
        "to the front of the queue:|all is computed again,|less what the cache still has",
        (292, 352), anchor="end",
    )  # fmt: skip
    page.arrow(
        [swapped.at("top", 0.9), (800.2, 310), (716, 310), (716, 286)],
        "back first, before|any new one begins", (808, 340), anchor="start",
    )  # fmt: skip
    page.words(
        28, 462, "An abort ends it in any state. Samples of one request (n > 1) fork when the "
        "prompt is computed, and are preempted together.",
    )  # fmt: skip
    return page.figure()
