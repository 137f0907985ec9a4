"""Transcripts: what requests ask and what they are answered, for a page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from minivllm.lab.viz.model.live import LiveRun
from minivllm.state import ALIVE

MAX_REQUESTS = 48  # the first ones: the others wait
MAX_TOKENS = 100  # of a prompt, and of an answer: the last ones
KINDS = {"chatcmpl": "Chat", "cmpl": "Completion"}


def transcripts(run: LiveRun, decode: Callable[[Sequence[int]], str]) -> list[dict[str, Any]]:
    """Return the requests that the engine knows, in order of arrival, with their texts.

    Args:
        run: the run so far.
        decode: turns token ids into text.
    """
    indices = {seq_id: index for index, seq_id in enumerate(run.owners)}
    families: dict[str, list[str]] = {}
    for seq_id in indices:
        if seq_id in run.state.sequences:
            families.setdefault(run.state.sequences[seq_id].request_id, []).append(seq_id)

    def text(token_ids: list[int]) -> str:
        shown = decode(token_ids[-MAX_TOKENS:]).strip()
        return "…" + shown if len(token_ids) > MAX_TOKENS else shown

    found = []
    for request_id, seq_ids in islice(families.items(), MAX_REQUESTS):
        sequences = [run.state.sequences[seq_id] for seq_id in seq_ids]
        num_prompt_tokens = sequences[0].num_prompt_tokens
        found.append(
            {
                "id": request_id,
                "going": any(seq.status in ALIVE for seq in sequences),
                "kind": KINDS.get(request_id.partition("-")[0], "Request"),
                "prompt": text(sequences[0].token_ids[:num_prompt_tokens]),
                "answers": [
                    [indices[seq.seq_id], text(seq.token_ids[num_prompt_tokens:])]
                    for seq in sequences
                ],
            }
        )
    return found
