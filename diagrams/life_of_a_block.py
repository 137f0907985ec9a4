"""The life of a block: free, held, shared, free but cached, and back."""

from __future__ import annotations

from canvas import BLUE, GREEN, ORANGE, PINK, Canvas

from minivllm.lab.viz.draw.figure import Figure

ALT = (
    "Life of a block: taken from the head of the free queue it has one reference and is filled. "
    "When full it gets a hash and can be found. A fork or a hit adds a reference: it is shared, "
    "and writing into a partly filled shared block copies it first. When the last reference goes, "
    "a block without a hash returns to the head of the queue; one with a hash goes to the tail, "
    "where it can be hit again, until it is allocated again and so evicted."
)


def draw() -> Figure:
    page = Canvas(
        "The life of a block", "ref_cnt says how many block tables point to it; a block is in the "
        "free queue exactly when that is 0.", ALT, 960, 500,
    )  # fmt: skip
    free = page.box(
        36, 200, 170, 76, "free", ("ref_cnt 0, no hash;", "at the head of the queue"), mono=False
    )
    held = page.box(
        316, 200, 170, 76, "held", ("ref_cnt 1;", "its sequence fills it"), mono=False, colour=GREEN
    )
    full = page.box(
        596, 200, 170, 76, "full, with a hash", ("ref_cnt 1;", "others can find it"), mono=False,
        colour=BLUE,
    )  # fmt: skip
    shared = page.box(456, 84, 170, 60, "shared", ("ref_cnt 2 or more",), mono=False, colour=ORANGE)
    cached = page.box(
        596, 366, 170, 76, "free, but cached", ("ref_cnt 0, keeps its hash;", "at the tail"),
        mono=False, colour=PINK, dashed=True,
    )  # fmt: skip
    page.arrow([free.right, held.left], "allocate: from|the head", (261, 216))
    page.arrow([held.right, full.left], "filled, and|registered", (541, 216))
    page.arrow(
        [(367, 200), (367, 114), shared.left], "fork: + 1, nothing|is copied", (357, 150),
        anchor="end",
    )  # fmt: skip
    page.arrow(
        [(482, 144), (482, 172), (452, 172), (452, 200)],
        "write into a partly filled one: a copy|for the writer, − 1 here", (494, 166),
        anchor="start",
    )  # fmt: skip
    page.arrow([(740, 200), (740, 114), shared.right], "hit: + 1", (750, 150), anchor="start")
    page.arrow(
        [full.at("bottom", 0.3), (647, 366)],
        "the last reference|goes: − 1",
        (636, 316),
        anchor="end",
    )
    page.arrow(
        [cached.at("top", 0.7), (715, 276)], "hit: out of the middle|of the queue, + 1", (726, 316),
        anchor="start",
    )  # fmt: skip
    page.arrow(
        [(358, 276), (358, 318), (121, 318), free.bottom],
        "freed partly filled: to the head,|nothing is lost by using it first", (240, 338),
    )  # fmt: skip
    page.arrow(
        [cached.left, (444, 404), (444, 276)],
        "evicted: it has come to the head and|is allocated; its hash is forgotten", (432, 420),
        anchor="end",
    )  # fmt: skip
    page.words(
        36, 478, "A sequence frees its last block first, so that the end of a prefix is evicted "
        "before its beginning. Block 0, the null block, never moves.",
    )  # fmt: skip
    return page.figure()
