"""Palette: a letter and a colour for each request, by order of arrival.

The colours are Okabe and Ito's seven, which colour-blind people can tell apart, and a dark one that
is none of them. They repeat after eight; letters never do, so a figure is read by its letters and
only helped by its colours.
"""

from __future__ import annotations

import re
from colorsys import hls_to_rgb, rgb_to_hls
from dataclasses import dataclass

from minivllm.lab.viz.draw.wording import shorten
from minivllm.trace import Trace
from minivllm.trace.records import Forked, Record, RequestAdded

INK = "#1a1a1a"  # text and marks
GREY = "#5f5f5f"  # labels that step back (still 6:1 on white)
LINE = "#b8b8b8"  # outlines of what is empty or free
HAIRLINE = "#dddddd"  # behind all else; words may lie on it
PAPER = "#ffffff"
ACCENT = "#c2005c"  # marks that a figure's caller sets, and nothing else

ON_DARK = "#fefefe"  # text on a full colour, which no page changes
ON_LIGHT = "#1b1b1b"

OKABE_ITO = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442")
OWNERS = (*OKABE_ITO, "#882255")


@dataclass(frozen=True)
class Owner:
    """Colours of a sequence: ``solid`` for this step, ``light`` for what is there already."""

    seq_id: str
    letter: str
    solid: str
    light: str
    edge: str
    ink: str  # text on ``solid``

    @property
    def label(self) -> tuple[str, str]:
        """Letter and id in one: only the letter if the id is the same, or counts as it does."""
        number, _, sample = self.seq_id.partition("/")
        if number.isdecimal() and len(number) < 4 and letter(int(number)) + sample == self.letter:
            return self.letter, ""
        if re.fullmatch(rf"{self.letter}\d*", number + sample):
            return number + sample, ""
        return self.letter, self.seq_id

    def name(self, length: int) -> str:
        """The same for a terminal, the id shortened to this length."""
        first, rest = self.label
        return f"{first} {shorten(rest, length)}".rstrip()


def letter(index: int) -> str:
    """A to Z, then AA, AB, ... like the columns of a spreadsheet."""
    name = ""
    index += 1
    while index:
        index, digit = divmod(index - 1, 26)
        name = chr(ord("A") + digit) + name
    return name


def owners_of(trace: Trace) -> dict[str, Owner]:
    """Every sequence of a trace with its letter and colours, in order of arrival.

    Samples of one request come after it, in tints of its colour, and are told apart by a number.
    """
    arrivals = Arrivals()
    before = trace.first_step - 1
    state = trace.beginning()  # what records have led to that have been forgotten
    for seq in state.sequences.values():
        first = seq.seq_id == seq.request_id
        added = RequestAdded(before, seq.request_id, (), 0)
        arrivals.note(added if first else Forked(before, seq.request_id, seq.seq_id))
    for seq_id in {block.seq_id: None for block in state.contents.values()}:
        if seq_id not in arrivals.owners:  # it is over, but its blocks can be found
            arrivals.note(RequestAdded(before, seq_id, (), 0))
    for record in trace.of(RequestAdded, Forked):
        arrivals.note(record)
    return arrivals.in_order()


class Arrivals:
    """The owners so far of a run that may still go on; see ``owners_of``."""

    def __init__(self):
        self.owners: dict[str, Owner] = {}  # by sequence id
        self._families: dict[str, list[str]] = {}  # by request id: its sequences, itself first
        self._request_of: dict[str, str] = {}
        self._num_arrived = 0

    @property
    def request_ids(self) -> list[str]:
        """Request ids that are not forgotten, in order of arrival."""
        return list(self._families)

    def request_of(self, seq_id: str) -> str:
        """The id of the request that a sequence belongs to."""
        return self._request_of[seq_id]

    def note(self, record: Record) -> None:
        """Take one more record; of most kinds nothing is to be noted."""
        match record:
            case RequestAdded(_, request_id) if request_id not in self._families:
                owner = nth_owner(request_id, self._num_arrived)
                self._num_arrived += 1
                self._add(owner, request_id)
            case Forked(_, seq_id, child_id) if child_id not in self.owners:
                # Some do not come here: a beam's id can be born again.
                request_id = self._request_of[seq_id]
                parent = self.owners[request_id]
                number = len(self._families[request_id])
                name = f"{parent.letter}{number}"
                tint = TINTS[(number - 1) % len(TINTS)]
                self._add(_coloured(child_id, name, _mix(parent.solid, *tint)), request_id)

    def forget(self, request_id: str) -> None:
        """A request and its samples are no longer to be drawn; their letters do not come again."""
        for seq_id in self._families.pop(request_id):
            del self.owners[seq_id], self._request_of[seq_id]

    def in_order(self) -> dict[str, Owner]:
        """By sequence id: requests in order of arrival, the samples of each behind it."""
        return {
            seq_id: self.owners[seq_id] for seq_ids in self._families.values() for seq_id in seq_ids
        }

    def _add(self, owner: Owner, request_id: str) -> None:
        self.owners[owner.seq_id] = owner
        self._families.setdefault(request_id, []).append(owner.seq_id)
        self._request_of[owner.seq_id] = request_id


def nth_owner(seq_id: str, index: int) -> Owner:
    """The owner that is number ``index`` to arrive, from 0."""
    return _coloured(seq_id, letter(index), OWNERS[index % len(OWNERS)])


def item_owner(identifier: str, index: int) -> Owner:
    """Letter and colours of an item, such as a picture: a small letter, colours from the other end.

    Its identifier takes the place of a sequence's id.
    """
    solid = OKABE_ITO[-1 - index % len(OKABE_ITO)]
    return _coloured(identifier, letter(index).lower(), solid)


def _coloured(seq_id: str, name: str, solid: str) -> Owner:
    red, green, blue = _channels(solid)
    is_dark = 0.30 * red + 0.59 * green + 0.11 * blue < 140
    ink = ON_DARK if is_dark else ON_LIGHT
    return Owner(
        seq_id, name, solid, light=_mix(solid, 255, 0.68), edge=_mix(solid, 0, 0.45), ink=ink
    )


def dark(colour: str) -> str:
    """The partner of a colour on dark paper: as light as it is dark. Full colours stay."""
    if colour in KEPT or not colour.startswith("#"):
        return colour
    hue, lightness, saturation = rgb_to_hls(*(c / 255 for c in _channels(colour)))
    swapped = hls_to_rgb(hue, 0.93 - 0.82 * lightness, saturation)
    return "#" + "".join(f"{round(255 * c):02x}" for c in swapped)


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def _mix(colour: str, other: int, amount: float) -> str:
    """A colour with ``amount`` of white (255) or black (0) stirred in."""
    mixed = (round(c * (1 - amount) + other * amount) for c in _channels(colour))
    return "#" + "".join(f"{c:02x}" for c in mixed)


# Amounts of white or black in the colours of a request's samples; the first has none.
TINTS = ((255, 0.35), (0, 0.35), (255, 0.6))

_SAMPLES = [_mix(colour, *tint) for colour in OWNERS for tint in TINTS]
KEPT = {ON_DARK, ON_LIGHT, *OWNERS, *_SAMPLES}


def _luminance(colour: str) -> float:
    """Relative luminance, 0 to 1, as WCAG 2 defines it."""
    shares = [channel / 255 for channel in _channels(colour)]
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# Every pair of a solid colour and the ink upon it that owners have, numbered for a style sheet.
COLOURS = {
    (owner.solid, owner.ink): index
    for index, owner in enumerate(_coloured("", "", solid) for solid in (*OWNERS, *_SAMPLES))
}

# The same colours in their order, with the small text that a page writes on them: the one of black
# and white that has the greater contrast, which is 4.5 to 1 at least (they are equal at 0.179).
ON_PAGES = [(solid, "#000000" if _luminance(solid) > 0.179 else "#ffffff") for solid, _ in COLOURS]
