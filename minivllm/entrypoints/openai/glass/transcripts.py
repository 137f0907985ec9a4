"""Transcripts: prompts and answers of the requests in an engine, for a page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from minivllm.entrypoints.chat_utils import apply_chat_template
from minivllm.lab.viz.model.live import LiveRun
from minivllm.trace.state import ALIVE, SequenceState

MAX_REQUESTS = 48  # in one picture; of more, those that are finished are left out first
MAX_PROMPT = 100  # tokens of a prompt: the last ones
MAX_ANSWER = 300  # tokens of an answer: the first ones
MAX_MESSAGE = 600  # characters of a chat's last message
KINDS = {"chatcmpl": "Chat", "cmpl": "Completion"}

Decode = Callable[[Sequence[int], bool], str]  # the bool: without special tokens


class LastTurn:
    """The last message of a chat's prompt, without what the model's template puts around it.

    The template is rendered once, with words that no message has, to see what that is.

    Args:
        tokenizer: the model's.
        chat_template: the server's; None: the tokenizer's own.

    Raises:
        ValueError: if there is no template, or it takes no message of a user.
    """

    def __init__(self, tokenizer: Any, chat_template: str | None):
        word, other = "BEGIN", "AGAIN"
        messages = [
            {"role": "user", "content": word},
            {"role": "assistant", "content": other},
            {"role": "user", "content": word},
        ]
        alone = apply_chat_template(tokenizer, messages[:1], chat_template).split(word)
        later = apply_chat_template(tokenizer, messages, chat_template).split(word)
        if len(alone) != 2 or len(later) != 3:
            raise ValueError("the chat template does not write a message as it is.")
        pairs = zip(reversed(alone[0]), reversed(later[1]), strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._head = alone[0][len(alone[0]) - same :]  # what begins a message of a user
        self._tail = alone[1]

    def of(self, text: str) -> str:
        """Return the last message of a rendered prompt, or its end."""
        text = text.removesuffix(self._tail)
        return text.rpartition(self._head)[2] if self._head else text


class Transcripts:
    """Texts of the requests that a run remembers.

    A finished request stays as long as the timeline shows it: a page that misses a picture finds
    the whole answer in the next one.

    Args:
        run: the run.
        decode: turns token ids into text.
        last_turn: finds the message in the prompt of a chat; None shows the prompt.
    """

    def __init__(self, run: LiveRun, decode: Decode, last_turn: LastTurn | None = None):
        self._run = run
        self._decode = decode
        self._last_turn = last_turn
        self._sequences: dict[str, SequenceState] = {}
        self._prompts: dict[str, str] = {}  # by request id

    def update(self) -> None:
        """Take what the run has read since, and forget what it has forgotten."""
        known = self._sequences | self._run.state.sequences
        self._sequences = {seq_id: known[seq_id] for seq_id in self._run.owners if seq_id in known}
        names = {seq.request_id for seq in self._sequences.values()}
        self._prompts = {name: text for name, text in self._prompts.items() if name in names}

    def to_json(self) -> list[dict[str, Any]]:
        """Return the requests in order of arrival: id, kind, state, prompt, answers by owners."""
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
                "state": _state(seqs),
                "tokens": sum(len(seq.token_ids) - seq.num_prompt_tokens for seq in seqs),
                "prompt": self._prompt(seqs[0]),
                "answers": [[indices[seq.seq_id], self._answer(seq)] for seq in seqs],
            }
            for name, seqs in requests.items()
            if name in shown
        ]

    def _prompt(self, seq: SequenceState) -> str:
        """The last message of a chat; of another request the prompt's end."""
        if seq.request_id not in self._prompts:
            ids = seq.token_ids[: seq.num_prompt_tokens]
            if self._last_turn is not None and seq.request_id.startswith("chatcmpl-"):
                text = self._last_turn.of(self._decode(ids, False)).strip()
                text = text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "…"
            else:
                text = self._decode(ids[-MAX_PROMPT:], True).strip()
                text = "…" + text if len(ids) > MAX_PROMPT else text
            self._prompts[seq.request_id] = text
        return self._prompts[seq.request_id]

    def _answer(self, seq: SequenceState) -> str:
        ids = seq.token_ids[seq.num_prompt_tokens :]
        text = self._decode(ids[:MAX_ANSWER], True).strip()
        return text + "…" if len(ids) > MAX_ANSWER else text


def _state(seqs: Sequence[SequenceState]) -> str:
    """State of a request, in a word."""
    alive = [seq.status for seq in seqs if seq.status in ALIVE]
    if not alive:
        return "finished"
    for status in ("running", "preempted"):
        if status in alive:
            return status
    return "waiting"
