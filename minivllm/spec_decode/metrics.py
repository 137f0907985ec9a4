"""Acceptance metrics: how many drafts there were, and how many of them were right.

(vLLM: vllm/v1/spec_decode/metrics.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SpecDecodingStats:
    """Counts of one step, or of many."""

    num_spec_tokens: int  # the most drafts that a sequence has: k
    num_drafts: int = 0  # verifications: sequences with at least one draft, once per step
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    # how often the first draft was accepted, the second, ...
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)

    def __post_init__(self):
        if not self.num_accepted_tokens_per_pos:
            self.num_accepted_tokens_per_pos = [0] * self.num_spec_tokens

    def observe_draft(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """A sequence's drafts have been verified."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        for position in range(num_accepted_tokens):
            self.num_accepted_tokens_per_pos[position] += 1

    def add(self, other: SpecDecodingStats) -> None:
        """Count what another one has counted."""
        self.num_drafts += other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        for position, count in enumerate(other.num_accepted_tokens_per_pos):
            self.num_accepted_tokens_per_pos[position] += count

    @property
    def acceptance_rate(self) -> float:
        """The share of drafts that were right, 0 to 1."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per verification, the one that is drawn anyway included."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0
