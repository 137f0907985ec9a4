"""Speculation's part of the engine's arguments: a draft model, and slots for its K and V.

(vLLM: vllm/config/speculative.py)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from minivllm.models.hub import ModelSource, draft_model_directory
from minivllm.models.loader import load_config
from minivllm.models.model_config import ModelConfig
from minivllm.speculative import SpeculativeConfig
from minivllm.validation import check


class Limits(NamedTuple):
    """Limits of a sequence and of a step, in tokens."""

    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int


class SlotsForDrafts(NamedTuple):
    """Slots of a step that drafts take, in tokens; see ``SchedulerConfig``."""

    num_speculative_tokens: int = 0
    num_lookahead_tokens: int = 0
    num_drafting_slots: int = 0


def slots_for_drafts(config: SpeculativeConfig | None, limits: Limits) -> SlotsForDrafts:
    """Lookahead slots of a draft model: its K and V lie behind the model's, and it reads one more.

    Raises:
        ValueError: if a sequence or a step is too short for that.
    """
    if config is None:
        return SlotsForDrafts()
    k, most = config.num_speculative_tokens, limits.max_model_len - 1
    check(k <= most, "num_speculative_tokens", k, f"at most {most}, below max_model_len")
    if config.method != "draft_model":
        return SlotsForDrafts(k)
    budget = limits.max_num_batched_tokens
    allowed = "at least 2: a draft model computes one token more than the model"
    check(budget > 1, "max_num_batched_tokens", budget, allowed)
    return SlotsForDrafts(k, num_lookahead_tokens=k, num_drafting_slots=1)


def draft_model_of(
    args: ModelSource, config: SpeculativeConfig | None, target: ModelConfig
) -> tuple[Path, ModelConfig] | tuple[None, None]:
    """Directory and shapes of the draft model, None without one. It runs in the target's dtype.

    Raises:
        FileNotFoundError: if it cannot be had.
        ValueError: if its vocabulary is another one.
    """
    if config is None or config.method != "draft_model":
        return None, None
    directory = draft_model_directory(args, config.model)
    draft = load_config(directory)
    ok = draft.vocab_size == target.vocab_size
    allowed = f"the model's own, {target.vocab_size} tokens"
    check(ok, "the speculative model's vocabulary", f"{draft.vocab_size} tokens", allowed)
    return directory, replace(draft, dtype=target.dtype)
