"""Acceptance: what became of a run's drafts, read from its trace."""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.trace import Trace
from minivllm.trace.records import Sampled, Scheduled, Verified


@dataclass(frozen=True)
class Acceptance:
    """Acceptance of a proposer's drafts.

    Args:
        tokens_per_step: tokens that a sequence gains in a step that decodes, with drafts or not;
            1 without speculation. 0 if nothing is decoded.
        rate: the share of drafts that were accepted, 0 to 1.
        tokens_per_draft: tokens gained in a step that verifies drafts (vLLM: mean acceptance
            length).
        first_right: of the steps that verify drafts, the share in which the first draft was
            accepted, the first two, and so on.
    """

    tokens_per_step: float
    rate: float
    tokens_per_draft: float
    first_right: tuple[float, ...]

    @classmethod
    def of(cls, trace: Trace) -> Acceptance:
        """Count what a trace holds; clear it between two runs to have them apart."""
        found = [r for r in trace.of(Verified) if isinstance(r, Verified)]
        drafted = sum(len(r.draft_token_ids) for r in found)
        accepted = sum(r.num_accepted for r in found)
        longest = max((len(r.draft_token_ids) for r in found), default=0)
        first_right = tuple(
            sum(r.num_accepted >= i for r in found) / len(found) for i in range(1, longest + 1)
        )
        tokens, steps = _decoded(trace)
        return cls(
            tokens / max(1, steps),
            accepted / max(1, drafted),
            1 + accepted / max(1, len(found)),
            first_right=first_right,
        )


def _decoded(trace: Trace) -> tuple[int, int]:
    """Tokens gained by decoding, and in how many steps, each sequence counted by itself."""
    begun: set[str] = set()  # who has its first token, which is the prefill's
    decoding: set[tuple[str, int]] = set()
    num_tokens = 0
    for record in trace.of(Scheduled, Sampled):
        if isinstance(record, Scheduled):
            if record.seq_id in begun and record.samples:
                decoding.add((record.seq_id, record.step))
        elif isinstance(record, Sampled):
            num_tokens += (record.seq_id, record.step) in decoding
            begun.add(record.seq_id)
    return num_tokens, len(decoding)
