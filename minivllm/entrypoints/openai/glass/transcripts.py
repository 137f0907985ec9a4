"""Transcripts: prompts and answers of the requests in an engine, for a page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minivllm.lab.viz.model.live import LiveRun
from minivllm.trace.state import ALIVE, SequenceState

MAX_REQUESTS = 48  # in one picture; of more, those that are finished are left out first
MAX_TOKENS = 100  # of a prompt, and of an answer: the last ones
KINDS = {"chatcmpl": "Chat", "cmpl": "Completion"}


class Transcripts:
    """Texts of the requests that a run remembers.

    A finished request stays as long as the timeline shows it: a page that misses a picture finds
    the whole answer in the next one.

    Args:
        run: the run.
        decode: turns token ids into text.
    """

    def __init__(self, run: LiveRun, decode: Callable[[Sequence[int]], str]):
        self._run = run
        self._decode = decode
        self._sequences: dict[str, SequenceState] = {}

    def update(self) -> None:
        """Take what the run has read since, and forget what it has forgotten."""
        known = self._sequences | self._run.state.sequences
        self._sequences = {seq_id: known[seq_id] for seq_id in self._run.owners if seq_id in known}

    def to_json(self) -> list[dict[str, Any]]:
        """Return the requests in order of arrival: id, kind, prompt, and answers by owners."""
        requests: dict[str, list[SequenceState]] = {}
        for seq in self._sequences.values():
            requests.setdefault(seq.request_id, []).append(seq)
        going = {name: any(s.status in ALIVE for s in seqs) for name, seqs in requests.items()}
        shown = set(sorted(requests, key=lambda name: not going[name])[:MAX_REQUESTS])
        indices = {seq_id: index for index, seq_id in enumerate(self._run.owners)}
        return [
            {
                "id": name,
                "kind": KINDS.get(name.partition("-")[0], "Request"),
                "going": going[name],
                "prompt": self._text(seqs[0].token_ids[: seqs[0].num_prompt_tokens]),
                "answers": [
                    [indices[seq.seq_id], self._text(seq.token_ids[seq.num_prompt_tokens :])]
                    for seq in seqs
                ],
            }
            for name, seqs in requests.items()
            if name in shown
        ]

    def _text(self, token_ids: list[int]) -> str:
        text = self._decode(token_ids[-MAX_TOKENS:]).strip()
        return "…" + text if len(token_ids) > MAX_TOKENS else text
