"""Acceptance metrics of speculative decoding: drafts proposed, drafts accepted.

(vLLM: vllm/v1/spec_decode/metrics.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SpecDecodingStats:
    """Counts of drafts and accepted tokens, of one step or several."""

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
        """Count the verified drafts of one sequence."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        for position in range(num_accepted_tokens):
            self.num_accepted_tokens_per_pos[position] += 1

    def add(self, other: SpecDecodingStats) -> None:
        """Add the counts of another object."""
        self.num_drafts += other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        for position, count in enumerate(other.num_accepted_tokens_per_pos):
            self.num_accepted_tokens_per_pos[position] += count

    def as_line(self, seconds: float) -> str:
        """vLLM's log line, for counts of this many seconds."""
        per_position = [n / self.num_drafts for n in self.num_accepted_tokens_per_pos]
        return (
            f"SpecDecoding metrics: Mean acceptance length: {self.mean_acceptance_length:.2f}, "
            f"Accepted throughput: {self.num_accepted_tokens / seconds:.2f} tokens/s, "
            f"Drafted throughput: {self.num_draft_tokens / seconds:.2f} tokens/s, "
            f"Accepted: {self.num_accepted_tokens} tokens, "
            f"Drafted: {self.num_draft_tokens} tokens, "
            f"Per-position acceptance rate: {', '.join(f'{rate:.3f}' for rate in per_position)}, "
            f"Avg Draft acceptance rate: {100 * self.acceptance_rate:.1f}%"
        )

    @property
    def counters(self) -> dict[str, int]:
        """vLLM's counters, by their names; ``num_accepted_tokens_per_pos`` has its own kind."""
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        return {f"spec_decode_{name}": getattr(self, name) for name in names}

    @property
    def acceptance_rate(self) -> float:
        """The share of draft tokens that were accepted, 0 to 1."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Mean acceptance length: tokens per verification, the bonus token included."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0
