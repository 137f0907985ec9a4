"""One step of the engine: its four parts, and what each of them does."""

from __future__ import annotations

from itertools import pairwise

from canvas import BLUE, GREEN, GREY, ORANGE, RED, Canvas

from minivllm.lab.viz.draw.figure import Figure

ALT = (
    "One step: schedule lets running sequences go on, brings swapped ones back, then admits "
    "waiting ones under one token budget and writes a SchedulerOutput. execute_model swaps and "
    "copies blocks, lays all tokens in one flat batch, runs the model, and samples for those that "
    "caught up. update_from_output appends the tokens, forks, finishes and frees. Then outputs are "
    "made."
)


def draw() -> Figure:
    page = Canvas(
        "One step", "EngineCore.step() is the first three columns, read downwards; "
        "LLMEngine.step() adds the fourth.", ALT, 960, 520,
    )  # fmt: skip
    columns = (
        (24, "1  schedule()", "Scheduler", GREEN, (
            ("running first", "each takes its tokens to come,", "as far as the budget reaches"),
            ("no room?", "the last admitted gives way:", "recomputed, or swapped out"),
            ("swapped ones return", "unless somebody gave way"),
            ("then waiting ones", "less their cache hit;", "nobody overtakes the first"),
        )),
        (258, "2  execute_model(plan)", "ModelRunner", RED, (
            ("swaps, then copies", "before anything is read"),
            ("one flat batch", "all tokens side by side, with", "AttentionMetadata to tell whose"),
            ("the model", "each layer writes K and V into", "slots, reads blocks by the table"),
            ("logits → tokens", "only for the rows of those", "that have caught up"),
        )),
        (492, "3  update_from_output()", "Scheduler", GREEN, (
            ("count", "what is computed catches up"),
            ("append", "the token that was drawn"),
            ("fork", "n samples of a finished prompt", "share all of its blocks"),
            ("finish and free", "EOS, stop, length; the blocks", "serve the very next step"),
        )),
        (726, "4  process_outputs()", "OutputProcessor", BLUE, (
            ("detokenize", "hold back what may yet", "become a stop string"),
            ("RequestOutput", "for everyone with a new token"),
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
