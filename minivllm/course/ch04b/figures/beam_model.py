"""BeamTree: what the beams of one request were after each step, and from which each one came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from minivllm.lab.viz.draw.palette import Owner, owners_of
from minivllm.trace import Trace
from minivllm.trace.records import Forked, StepEnded
from minivllm.trace.state import State
from minivllm.utils.validation import check

Tokens = tuple[int, ...]


@dataclass
class Beam:
    """A beginning that was kept for at least one step."""

    tokens: Tokens  # without the prompt
    step: int  # in which it was drawn; the root has none
    owner: Owner | None  # of the sequence that it was then
    children: list[Beam] = field(default_factory=list)
    is_final: bool = False

    @property
    def is_dropped(self) -> bool:
        """Did no continuation of it survive?"""
        return not self.children and not self.is_final

    def walk(self) -> Iterator[Beam]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class BeamTree:
    """Below the root, which is the prompt, all beams that a request has had."""

    request_id: str
    root: Beam

    @property
    def beams(self) -> list[Beam]:
        return list(self.root.walk())[1:]

    @property
    def depth(self) -> int:
        """Tokens of the longest one."""
        return max(len(beam.tokens) for beam in self.beams)


def read_beam_tree(trace: Trace, request_id: str | None) -> BeamTree:
    """Replay a search. Texts that ended early, with an end-of-sequence token, are no longer beams.

    Args:
        trace: what the engine wrote.
        request_id: whose beams; None is the first request with several sequences.

    Raises:
        ValueError: for a request that was never forked.
    """
    last = trace.state_at(trace.num_steps - 1) if trace.num_steps else trace.beginning()
    forked = {last.sequences[record.seq_id].request_id for record in trace.of(Forked)}
    known = [name for name in trace.request_ids if name in forked]
    request_id = known[0] if request_id is None and known else request_id
    check(request_id in known, "request_id", request_id, f"one with several beams: {known}")
    owners = owners_of(trace)
    state = trace.beginning()
    beams = {(): Beam((), -1, None)}
    for record in trace.records:
        state.apply(record)
        if isinstance(record, StepEnded):
            for tokens, seq_id in _alive(state, request_id).items():
                if tokens not in beams:
                    beams[tokens] = Beam(tokens, record.step, owners[seq_id])
                    beams[tokens[:-1]].children.append(beams[tokens])
    for tokens in _alive(last, request_id):
        beams[tokens].is_final = True
    return BeamTree(request_id, beams[()])


def _alive(state: State, request_id: str) -> dict[Tokens, str]:
    """By its tokens, each sequence that was not dropped."""
    return {
        tuple(seq.token_ids[seq.num_prompt_tokens :]): seq.seq_id
        for seq in state.sequences.values()
        if seq.request_id == request_id
        and seq.status != "dropped"
        and len(seq.token_ids) > seq.num_prompt_tokens
    }
