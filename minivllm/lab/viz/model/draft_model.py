"""Draft lanes: what one sequence computed in each of its steps, and which drafts were right."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from minivllm.lab.viz.draw.palette import Owner, owners_of
from minivllm.lab.viz.draw.wording import count, span
from minivllm.trace import Trace
from minivllm.trace.records import Sampled, Scheduled, Verified
from minivllm.utils.validation import check


@dataclass
class DraftLane:
    """One step of a sequence that draws tokens.

    Args:
        step: its number.
        position: of the token that is surely right, the last one known before the step.
        token: that token.
        drafts: the tokens that were guessed behind it.
        num_accepted: how many of them were right.
        sampled: the tokens that the sequence got, for the positions behind ``position``.
    """

    step: int
    position: int
    token: int
    drafts: tuple[int, ...] = ()
    num_accepted: int = 0
    sampled: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class DraftLanes:
    """The steps of one sequence between two steps, and what they wrote into its slots.

    Args:
        owner: whose they are.
        lanes: one a step.
        num_writes: how often the slot of each position was written in these steps.
        num_right: positions from this one on hold K and V of rejected drafts, or nothing.
        block_ids: of the sequence's table, in the last of these steps.
        block_size: positions per block.
    """

    owner: Owner
    lanes: list[DraftLane]
    num_writes: Counter
    num_right: int
    block_ids: list[int]
    block_size: int

    @property
    def positions(self) -> range:
        """From the first real token to the last one drafted or drawn."""
        ends = [lane.position + max(len(lane.drafts), len(lane.sampled)) for lane in self.lanes]
        return range(self.lanes[0].position, max(ends) + 1)

    @property
    def title(self) -> str:
        steps = span(self.lanes[0].step, self.lanes[-1].step)
        return f"Draft lanes of {self.owner.letter}, steps {steps}"

    @property
    def facts(self) -> str:
        drafted = sum(len(lane.drafts) for lane in self.lanes)
        accepted = sum(lane.num_accepted for lane in self.lanes)
        gained = sum(len(lane.sampled) for lane in self.lanes)
        told = f"{accepted} of {count(drafted, 'draft')} accepted"
        return f"{count(gained, 'token')} in {count(len(self.lanes), 'step')} · {told}"


def read_draft_lanes(
    trace: Trace, seq_id: str | None = None, first: int | None = None, last: int | None = None
) -> DraftLanes:
    """The lanes of one sequence; arguments and errors as of ``draft_lanes``."""
    check(trace.num_steps > 0, "trace", trace, "of an engine that has run at least one step")
    end = trace.num_steps - 1
    first = 0 if first is None else first
    last = end if last is None else last
    check(0 <= first <= last <= end, "steps", (first, last), f"first and last, from 0 to {end}")
    owners = owners_of(trace)
    seq_id = next(iter(owners)) if seq_id is None else seq_id
    check(seq_id in owners, "seq_id", seq_id, f"one of {', '.join(owners)}")
    lanes: dict[int, DraftLane] = {}
    writes: Counter = Counter()
    num_right = 0
    block_ids = []
    state = trace.beginning()
    for record in trace.records:
        state.apply(record)
        if not first <= record.step <= last or getattr(record, "seq_id", None) != seq_id:
            continue
        if isinstance(record, Scheduled):
            block_ids = list(state.sequences[seq_id].block_ids)
            stop = record.num_computed_tokens + record.num_tokens
            writes.update(range(record.num_computed_tokens, stop))
            num_right = stop
            if record.samples:
                known = state.sequences[seq_id].token_ids
                lanes[record.step] = DraftLane(record.step, len(known) - 1, known[-1])
        elif isinstance(record, Verified):
            lane = lanes[record.step]
            lane.drafts = record.draft_token_ids
            lane.num_accepted = record.num_accepted
            num_right = lane.position + 1 + record.num_accepted
        elif isinstance(record, Sampled):
            lanes[record.step].sampled.append(record.token_id)
    check(lanes, "steps", (first, last), f"some in which {seq_id!r} draws a token")
    return DraftLanes(
        owners[seq_id],
        list(lanes.values()),
        writes,
        num_right=num_right,
        block_ids=block_ids,
        block_size=trace.block_size,
    )
