"""One step of the engine: its four parts, and what each of them does."""

from __future__ import annotations

from itertools import pairwise

from canvas import BLUE, GREEN, GREY, ORANGE, PLAIN, RED, Canvas

from minivllm.lab.viz.draw.figure import Figure

ALT = (
    "One step: schedule lets running sequences go on, brings swapped ones back, then admits "
    "waiting ones under one token budget and writes a SchedulerOutput. execute_model swaps and "
    "copies blocks, puts all tokens in one flat batch, runs the model, and draws a token for each "
    "request whose tokens are all computed. update_from_output appends the tokens, forks, finishes "
    "and frees. Then outputs are made."
)


def draw() -> Figure:
    page = Canvas(
        "One step", "EngineCore.step() is the first three columns, read downwards; "
        "LLMEngine.step() adds the fourth.", ALT, 960, 520,
    )  # fmt: skip
    columns = (
        (24, "1  schedule()", "Scheduler", GREEN, (
            ("running first", "each takes its next tokens,", "while the budget lasts"),
            ("no room?", "the last admitted gives way:", "recomputed, or swapped out"),
            ("swapped ones return", "if none gave way in this step"),
            ("then waiting ones", "in order of arrival; cached", "tokens are not computed"),
        )),
        (258, "2  execute_model(plan)", "ModelRunner", RED, (
            ("swaps, then copies", "before anything is read"),
            ("one flat batch", "all tokens in one row; metadata", "says whose each one is"),
            ("the model", "each layer writes K and V to", "slots, and reads by the table"),
            ("logits → tokens", "for requests whose tokens", "are all computed now"),
        )),
        (492, "3  update_from_output()", "Scheduler", GREEN, (
            ("count", "the tokens now computed"),
            ("append", "the token that was drawn"),
            ("fork", "n samples of one prompt", "share its blocks"),
            ("finish and free", "EOS, stop, length: the blocks", "are free for the next step"),
        )),
        (726, "4  process_outputs()", "OutputProcessor", BLUE, (
            ("detokenize", "keep back what may become", "a stop string"),
            ("RequestOutput", "for each with a new token"),
        )),
    )  # fmt: skip
    heads = []
    for x, name, who, colour, parts in columns:
        page.region(x, 84, 210, 352)
        heads.append(page.box(x + 8, 92, 194, 50, name, (who,), colour=colour, mono=False))
        y, before = 156, heads[-1]
        for part, *notes in parts:
            height = 30 + 16 * len(notes)
            box = page.box(x + 8, y, 194, height, part, tuple(notes), mono=False)
            page.arrow([before.bottom, box.top], colour=GREY)
            y, before = y + height + 8, box
    for left, right in pairwise(heads):
        page.arrow([left.right, right.left])
    plan = page.box(146, 456, 200, 44, "SchedulerOutput", ("the plan",), colour=ORANGE)
    back = page.box(380, 456, 200, 44, "ModelRunnerOutput", ("sampled tokens",), colour=ORANGE)
    page.arrow([(129, 436), (129, 478), plan.left], colour=GREY)
    page.arrow([plan.top, (246, 446), (290, 446), (290, 436)], colour=GREY)
    page.arrow([(363, 436), (363, 478), back.left], colour=GREY)
    page.arrow([back.top, (480, 446), (530, 446), (530, 436)], colour=GREY)
    page.words(606, 474, "Trace writes a record for each of these,")
    page.words(606, 491, "if asked to: state_at(step) rebuilds all.")
    return page.figure()


SMALL = (
    ("add_request()", PLAIN, ("a prompt waits", "to be scheduled")),
    ("1  schedule()", GREEN, ("which requests compute", "which tokens")),
    ("2  execute_model()", RED, ("the model, once, for all", "of these tokens")),
    ("3  update", GREEN, ("append each new token;", "free what has finished")),
    ("4  outputs", BLUE, ("tokens to text,", "text to its reader")),
)


def draw_small() -> Figure:
    """The four parts and a sentence each, for the first lecture."""
    told = "; ".join(f"{name.lstrip('1234 ')}: {' '.join(notes)}" for name, _, notes in SMALL)
    alt = f"One step in four boxes, in a circle behind a box for requests that come: {told}."
    page = Canvas("One step", "The engine repeats it until no request is left.", alt, 960, 190)
    boxes = []
    for index, (name, colour, notes) in enumerate(SMALL):
        boxes.append(page.box(24 + 187 * index, 76, 164, 74, name, notes, colour, mono=False))
    for left, right in pairwise(boxes):
        page.arrow([left.right, right.left])
    last, first = boxes[-1].bottom, boxes[1].bottom
    page.arrow([last, (last[0], 172), (first[0], 172), first], "the next step", (570, 167))
    return page.figure()
