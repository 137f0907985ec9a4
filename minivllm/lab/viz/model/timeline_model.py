"""History: what each sequence did in each step; TimelineWindow: the steps that are drawn."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.palette import Owner, owners_of
from minivllm.lab.viz.draw.wording import count, listing, span
from minivllm.lab.viz.model.item_model import ItemLane, Items, ItemUse
from minivllm.trace import Trace
from minivllm.trace.records import (
    Finished,
    ItemEncoded,
    ItemReferred,
    Preempted,
    Record,
    Sampled,
    Scheduled,
    StepPlanned,
    StepStarted,
    SwappedOut,
    TokensWasted,
    Verified,
)
from minivllm.trace.state import State
from minivllm.utils.validation import check

# kinds of cells that compute nothing, by the direction of a transfer, and by a sequence's status
TRANSFERS = {"recv": "receiving", "send": "sending"}
WITHOUT_TOKENS = {
    "running": "idle", "waiting": "waiting", "receiving": "waiting", "preempted": "waiting",
    "swapped": "waiting",
}  # fmt: skip


@dataclass
class Cell:
    """Action of one sequence in one step.

    ``kind`` is "prefill" (tokens that catch up: a prompt, or everything again after a preemption),
    "decode" (the token drawn last, to draw the next), "verify" (a decode with drafts behind that
    token), "waiting", "receiving" (its K and V come from elsewhere), "sending" (it has ended, and
    its K and V go elsewhere), "idle" (runs, but this step has no budget for it), or "" (it is gone,
    or not there yet).
    """

    kind: str = ""
    start: int = 0  # position of the first token that is computed
    num_tokens: int = 0
    num_accepted: int = 0  # of the drafts, which are all of its tokens but the first
    preempted: bool = False
    dropped: bool = False  # a better beam took its place; that may end in the same step
    finish_reason: str | None = None
    is_placeholder: bool = False  # its one token was on its way when the step was planned
    is_wasted: bool = False  # the sequence had ended when what was drawn came
    items: list[Owner] = field(default_factory=list)  # whose placeholders are among the tokens

    @property
    def finished(self) -> bool:
        """Did it end in this step, and not give way to a better beam?"""
        return self.finish_reason is not None


@dataclass
class StepUse:
    """Use of budget and pool by one step. Tokens sampled come at its end."""

    num_tokens: int = 0
    num_blocks: int = 0
    num_sampled: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    num_blocks_by_kind: dict[str, int] = field(default_factory=dict)  # of KV cache groups


@dataclass
class History:
    """Actions of each sequence by step, and what each step used."""

    owners: dict[str, Owner]
    num_usable_blocks: int
    max_num_batched_tokens: int
    encoder_limits: tuple[int, int] = (0, 0)  # a step's budget, and the cache's size
    items: Items = field(default_factory=Items)
    # By sequence id, then by step; and by step. Of a run that goes on, old steps can be forgotten.
    rows: dict[str, dict[int, Cell]] = field(default_factory=dict)
    steps: dict[int, StepUse] = field(default_factory=dict)
    # Tokens whose K and V a preemption has thrown away, and those of them that were computed again.
    num_discarded: int = 0
    num_recomputed: int = 0
    reached: dict[str, int] = field(default_factory=dict)  # computed tokens, before a preemption
    counts: Counter = field(default_factory=Counter)  # of "preempted", "finished" and "wasted"

    @property
    def num_computed(self) -> int:
        return sum(step.num_tokens for step in self.steps.values())

    @property
    def num_sampled(self) -> int:
        return sum(step.num_sampled for step in self.steps.values())

    @property
    def peak_blocks(self) -> int:
        return max(step.num_blocks for step in self.steps.values())

    def note(self, state: State, record: Record) -> None:
        """Take one more record, given the state just before it."""
        match record:
            case StepStarted(step):
                self.steps[step] = StepUse()
            case Preempted(step, seq_id) | SwappedOut(step, seq_id):
                self._cell(seq_id, step).preempted = True
                if isinstance(record, Preempted):
                    num_computed = state.sequences[seq_id].num_computed_tokens
                    self.num_discarded += num_computed
                    self.reached[seq_id] = max(self.reached.get(seq_id, 0), num_computed)
                self.counts["preempted"] += 1
            case Finished(step, seq_id, reason):
                dropped = reason == "dropped"
                self.counts["finished"] += not dropped
                if step in self.steps and dropped:
                    self._cell(seq_id, step).dropped = True
                elif step in self.steps:
                    self._cell(seq_id, step).finish_reason = reason
            case Scheduled(step, seq_id, _, start, num_tokens, samples):
                again = min(self.reached.get(seq_id, 0), start + num_tokens) - start
                self.num_recomputed += max(0, again)
                cell = self._cell(seq_id, step)
                prompt = state.sequences[seq_id].num_prompt_tokens
                decode = samples and num_tokens == 1 and start >= prompt
                cell.kind = "decode" if decode else "prefill"
                cell.start = start
                cell.num_tokens = num_tokens
                for identifier, offset, length in state.sequences[seq_id].mm_items:
                    if offset < start + num_tokens and start < offset + length:
                        cell.items.append(self.items.owner(identifier))
                cell.is_placeholder = decode and start >= len(state.sequences[seq_id].token_ids)
            case Verified(step, seq_id, drafts, num_accepted):
                cell = self._cell(seq_id, step)
                cell.kind = "verify"
                cell.num_accepted = num_accepted
                self.steps[step].num_drafts += len(drafts)
                self.steps[step].num_accepted += num_accepted
            case ItemReferred(_, _, identifier):
                self.items.owner(identifier)
            case ItemEncoded(step, _, identifier, num_embeds):
                self.items.note_encoded(step, identifier, num_embeds)
            case Sampled(step):
                self.steps[step].num_sampled += 1
            case TokensWasted(_, seq_id, plan, num_tokens) if plan in self.rows.get(seq_id, {}):
                self._cell(seq_id, plan).is_wasted = True
                self.counts["wasted"] += num_tokens

    def note_plan(self, state: State, step: int) -> None:
        """Take what holds for a whole step, once it is scheduled."""
        self.steps[step].num_tokens = state.num_planned_tokens(step)
        self.steps[step].num_blocks = len(state.ref_counts)
        if len(state.groups) > 1:
            by_kind: Counter[str] = Counter()
            for group, num_blocks in zip(state.groups, state.num_held_by_group, strict=True):
                by_kind[group.kind] += num_blocks
            self.steps[step].num_blocks_by_kind = dict(by_kind)
        self.items.note_plan(state, step)
        for seq_id, seq in state.sequences.items():
            if kind := TRANSFERS.get(seq.transfer) or WITHOUT_TOKENS.get(seq.status):
                cell = self._cell(seq_id, step)
                cell.kind = cell.kind or kind

    def forget_before(self, first: int) -> None:
        """Keep nothing of the steps before this one."""
        for by_step in (self.steps, *self.rows.values()):
            for step in [step for step in by_step if step < first]:
                del by_step[step]
        self.rows = {seq_id: cells for seq_id, cells in self.rows.items() if cells}
        self.items.forget_before(first)

    def _cell(self, seq_id: str, step: int) -> Cell:
        return self.rows.setdefault(seq_id, {}).setdefault(step, Cell())


def read_history(trace: Trace) -> History:
    """Replay a trace once, from front to back.

    Raises:
        ValueError: for a trace without steps.
    """
    check(trace.num_steps > 0, "trace", trace, "of an engine that has run at least one step")
    owners = owners_of(trace)
    history = History(
        owners,
        trace.num_blocks - 1,
        trace.max_num_batched_tokens,
        encoder_limits=(trace.max_num_encoder_input_tokens, trace.encoder_cache_size),
        rows={seq_id: {} for seq_id in owners},
    )
    state = trace.beginning()
    for record in trace.records:
        history.note(state, record)
        state.apply(record)
        if isinstance(record, StepPlanned):
            history.note_plan(state, record.step)
    return history


MAX_ROWS = 300


@dataclass(frozen=True)
class TimelineWindow:
    """The part of a history that is drawn, and what to say about it."""

    first: int
    last: int
    all_rows: list[tuple[Owner, dict[int, Cell]]]  # those with something to show, by arrival
    steps: list[StepUse]
    max_num_batched_tokens: int
    num_usable_blocks: int
    milliseconds: list[float] | None  # of each step; None if steps are only counted
    item_uses: list[ItemUse]  # of each step; none if there are no items
    encoder_limits: tuple[int, int]  # as for ``History``

    @classmethod
    def of(
        cls, history: History, first: int, last: int, milliseconds: list[float] | None = None
    ) -> TimelineWindow:
        rows = []
        for seq_id, owner in history.owners.items():
            cells = history.rows.get(seq_id, {})
            seen = {step: cell for step, cell in cells.items() if first <= step <= last}
            if seen:
                rows.append((owner, seen))
        steps = [history.steps[step] for step in range(first, last + 1)]
        return cls(
            first,
            last,
            rows,
            steps=steps,
            max_num_batched_tokens=history.max_num_batched_tokens,
            num_usable_blocks=history.num_usable_blocks,
            milliseconds=milliseconds and milliseconds[first : last + 1],
            item_uses=history.items.of(range(first, last + 1)),
            encoder_limits=history.encoder_limits,
        )

    @property
    def rows(self) -> list[tuple[Owner, dict[int, Cell]]]:
        """Those that are shown."""
        return self.all_rows[:MAX_ROWS]

    @property
    def footnote(self) -> str:
        left_out = len(self.all_rows) - len(self.rows)
        if not left_out:
            return ""
        return f"and {count(left_out, 'more sequence')}; choose steps with first= and last=."

    @property
    def cells(self) -> list[Cell]:
        return [cell for _, row in self.all_rows for cell in row.values()]

    @property
    def lanes(self) -> list[tuple[str, str, list[int], int]]:
        """Name, what the limit is called, values by step, and the limit.

        Of several kinds of KV cache groups, each has a lane: the blocks of its groups together.
        """
        kinds = {kind: None for step in self.steps for kind in step.num_blocks_by_kind}
        by_kind = [[s.num_blocks_by_kind.get(kind, 0) for s in self.steps] for kind in kinds]
        usable = self.num_usable_blocks
        return [
            ("tokens", "budget", [s.num_tokens for s in self.steps], self.max_num_batched_tokens),
            ("blocks", "usable", [s.num_blocks for s in self.steps], usable),
            *((kind, "usable", held, usable) for kind, held in zip(kinds, by_kind, strict=True)),
        ]

    @property
    def item_lanes(self) -> list[ItemLane]:
        """Lanes of what is encoded and kept; none if there are no items."""
        if not self.item_uses:
            return []
        budget, size = self.encoder_limits
        encoded = [use.encoded for use in self.item_uses]
        kept = [use.kept for use in self.item_uses]
        return [
            ItemLane("encoded", "budget", encoded, budget),
            ItemLane("kept", "cache", kept, size),
        ]

    @property
    def num_encoded(self) -> int:
        return sum(len(use.encoded) for use in self.item_uses)

    @property
    def num_drafts(self) -> int:
        return sum(step.num_drafts for step in self.steps)

    @property
    def drafts_told(self) -> str:
        """Fate of the drafts; empty if there were none."""
        if not self.num_drafts:
            return ""
        num_accepted = sum(step.num_accepted for step in self.steps)
        return f"{num_accepted} of {count(self.num_drafts, 'draft')} accepted"

    @property
    def title(self) -> str:
        return f"Timeline, {'step' if self.first == self.last else 'steps'} " + span(
            self.first, self.last
        )

    @property
    def num_wasted(self) -> int:
        return sum(cell.is_wasted for cell in self.cells)

    @property
    def facts(self) -> str:
        tokens = sum(step.num_tokens for step in self.steps)
        preempted = sum(cell.preempted for cell in self.cells)
        finished = sum(cell.finished for cell in self.cells)
        dropped = sum(cell.dropped for cell in self.cells)
        parts = [
            count(len(self.all_rows), "sequence"),
            f"{count(tokens, 'token')} computed",
            count(preempted, "preemption"),
            f"{finished} finished",
            *([f"{count(dropped, 'beam')} dropped"] if dropped else []),
            *([f"{count(self.num_wasted, 'token')} wasted"] if self.num_wasted else []),
            *([f"{count(self.num_encoded, 'item')} encoded"] if self.item_uses else []),
            *filter(None, [self.drafts_told]),
            *([_milliseconds(self.milliseconds)] if self.milliseconds else []),
        ]
        return " · ".join(parts)

    @property
    def alt(self) -> str:
        peaks = [
            f"at most {max(values)} of {limit} "
            f"{translated(name) if i < 2 else f'blocks of group {name}'}"
            for i, (name, _, values, limit) in enumerate(self.lanes)
        ]
        told = self.facts.replace(" · ", ", ")
        return f"{self.title}: {told}; {listing(peaks)} in a step."


def _milliseconds(each: list[float]) -> str:
    return f"{sum(each):,.4g} ms, longest step {max(each):,.4g}"
