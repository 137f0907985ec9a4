"""Speculation in a replay: the made-up drafter of the recordings, and a habit of vLLM's scheduler.

A recording's config says ``"speculative": {"method", "num_speculative_tokens", "draft_seed",
"accept"}``; drafts follow from these and the tokens so far, some of them right, some wrong.
"""

from __future__ import annotations

from typing import Any

from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import fake_tokens
from minivllm.request import Request, Sequence
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace
from minivllm.utils.validation import check, is_int

METHODS = ("ngram", "draft_model")
ACCEPT = ("mixed", "all", "none")
PADDING = -1  # in the place of a draft; no token is equal to it


def check_speculative(speculative: Any) -> None:
    """Raise ``ValueError`` naming the first key of ``config["speculative"]`` that cannot be."""
    where = "config['speculative']"
    check(isinstance(speculative, dict), where, speculative, "an object")
    for key, allowed in (("method", METHODS), ("accept", ACCEPT)):
        value = speculative.get(key)
        check(value in allowed, f"{where}[{key!r}]", value, "one of " + ", ".join(allowed))
    for key, low, most in (("num_speculative_tokens", 1, 128), ("draft_seed", 0, 10**6)):
        value = speculative.get(key)
        ok = is_int(value, low) and value <= most
        check(ok, f"{where}[{key!r}]", value, f"an integer from {low} to {most}")


def speculative_limits(speculative: dict[str, Any]) -> dict[str, int]:
    """Limits for ``SchedulerConfig``: only a draft model needs slots and budget."""
    k = speculative["num_speculative_tokens"]
    has_model = speculative["method"] == "draft_model"
    return {
        "num_speculative_tokens": k,
        "num_lookahead_tokens": k if has_model else 0,
        "num_drafting_slots": 1 if has_model else 0,
    }


def fake_drafts(token_ids: list[int], speculative: dict[str, Any], max_model_len: int) -> list[int]:
    """The made-up drafter: the first drafts are what the made-up model will say, the others not."""
    n = len(token_ids)
    k = speculative["num_speculative_tokens"]
    x = (7 * sum(token_ids) + 13 * n + speculative["draft_seed"]) % 1009
    length = x % (k + 1) if speculative["method"] == "ngram" else k
    length = max(0, min(length, max_model_len - n))
    num_right = {"mixed": (x // 11) % (length + 1), "all": length, "none": 0}
    right = fake_tokens(token_ids, length)
    first_wrong = num_right[speculative["accept"]]
    return [t if j < first_wrong else (t - 4) % 1000 + 5 for j, t in enumerate(right)]


class PaddingScheduler(Scheduler):
    """vLLM's scheduler admits a sequence that lacks one token with ``k`` drafts that are none.

    Then it computes as many tokens as a decode with drafts does, and a batch of such is one CUDA
    graph. They are always rejected, and its metrics count them. Ours does without.
    """

    def __init__(
        self, config: SchedulerConfig, kv_manager: KVCacheManager, trace: Trace | None = None
    ):
        super().__init__(config, kv_manager, trace)
        self._unfinished_chunks: set[str] = set()  # ids of those whose last chunk was not the last

    def update_from_output(
        self, scheduler_output: SchedulerOutput, output: ModelRunnerOutput
    ) -> list[Sequence]:
        """Update as the parent does; a sequence without a token is amid its prefill."""
        scheduled = scheduler_output.num_scheduled_tokens.keys()
        self._unfinished_chunks -= scheduled
        self._unfinished_chunks |= scheduled - output.sampled_token_ids.keys()
        return super().update_from_output(scheduler_output, output)

    def _admit(self, request: Request, output: SchedulerOutput) -> bool:
        k = self.config.num_speculative_tokens
        (seq,) = request.unfinished_seqs
        num_hit = self.kv_manager.get_computed_blocks(seq).num_tokens
        if not self._is_padded(seq, num_hit, output):
            return super()._admit(request, output)
        if 1 + k > self.token_budget:
            return False
        seq.spec_token_ids = [PADDING] * k
        admitted = super()._admit(request, output)
        seq.spec_token_ids = []
        return admitted

    def _is_padded(self, seq: Sequence, num_hit: int, output: SchedulerOutput) -> bool:
        """Is it like a decode, in a step of decodes?"""
        begun = {new.seq_id for new in output.scheduled_new_reqs} | set(output.resumed_req_ids)
        going_on = output.num_scheduled_tokens.keys() - begun
        lacks_one = seq.num_tokens - num_hit == 1
        room = num_hit + self.config.num_speculative_tokens + 2 <= self.config.max_model_len
        decodes_only = going_on.isdisjoint(self._unfinished_chunks)
        return lacks_one and room and decodes_only and bool(going_on or num_hit)
