"""Palette: a letter and a colour for each request, by order of arrival.

The colours are Okabe and Ito's, which colour-blind people can tell apart. They repeat after seven;
letters never do, so a figure is read by its letters and only helped by its colours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minivllm.records import Forked, RequestAdded
from minivllm.trace import Trace

INK = "#1a1a1a"  # text and marks
GREY = "#5f5f5f"  # labels that step back (still 6:1 on white)
LINE = "#b8b8b8"  # outlines of what is empty or free
PAPER = "#ffffff"

OKABE_ITO = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442")


@dataclass(frozen=True)
class Owner:
    """How one sequence looks: ``solid`` is what happens now, ``light`` what is there already."""

    seq_id: str
    letter: str
    solid: str
    light: str
    edge: str
    ink: str  # text on ``solid``


def letter(index: int) -> str:
    """A to Z, then AA, AB, ... like the columns of a spreadsheet."""
    name, index = "", index + 1
    while index:
        index, digit = divmod(index - 1, 26)
        name = chr(ord("A") + digit) + name
    return name


def owners_of(trace: Trace) -> dict[str, Owner]:
    """Every sequence of a trace with its letter and colours, in order of arrival.

    Samples of one request share its colour, stand behind it, and are told apart by a number.
    """
    families: dict[str, list[str]] = {}
    request_of: dict[str, str] = {}
    for record in trace.of(RequestAdded, Forked):
        if isinstance(record, RequestAdded):
            families[record.request_id] = []
            request_of[record.request_id] = record.request_id
        elif record.child_id not in request_of:  # a beam's id can be born again
            request_id = request_of[record.child_id] = request_of[record.seq_id]
            families[request_id].append(record.child_id)
    owners = {}
    for index, (request_id, children) in enumerate(families.items()):
        owners[request_id] = parent = _owner(request_id, index)
        for number, child_id in enumerate(children, start=1):
            name = f"{parent.letter}{number}"
            owners[child_id] = replace(parent, seq_id=child_id, letter=name)
    return owners


def _owner(seq_id: str, index: int) -> Owner:
    solid = OKABE_ITO[index % len(OKABE_ITO)]
    red, green, blue = _channels(solid)
    dark = 0.30 * red + 0.59 * green + 0.11 * blue < 140
    return Owner(
        seq_id,
        letter(index),
        solid,
        light=_mix(solid, 255, 0.68),
        edge=_mix(solid, 0, 0.45),
        ink=PAPER if dark else INK,
    )


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def _mix(colour: str, other: int, amount: float) -> str:
    """A colour with ``amount`` of white (255) or black (0) stirred in."""
    mixed = (round(c * (1 - amount) + other * amount) for c in _channels(colour))
    return "#" + "".join(f"{c:02x}" for c in mixed)
