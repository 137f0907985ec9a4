"""Token bans: stop tokens before ``min_tokens``, and the last tokens of ``bad_words``.

(vLLM: vllm/v1/worker/gpu/sample/bad_words.py, BadWordsState; logit_bias.py, LogitBiasState)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minivllm.sampling.interface import LogitsProcessor, SamplingState
from minivllm.utils.tensors import make_tensor

_NOTHING = -1  # no token there yet
_ANYTHING = -2  # any token would do


class MinTokens(LogitsProcessor):
    """No end-of-sequence or stop token before the output is long enough."""

    def __init__(self, rows: list[int], states: Sequence[SamplingState], vocab_size, device):
        triples = []
        for row in rows:
            to_come = _num_to_come(states[row])
            ids = states[row].sampling_params.all_stop_token_ids
            triples += [(row, token_id, to_come) for token_id in ids]
        # int64 [pairs]: which token is out of bounds in which row, and for how many more steps
        self.rows, self.ids, self.to_come = make_tensor(triples, "int64", device).unbind(1)

    @staticmethod
    def rows_of(states: Sequence[SamplingState]) -> list[int]:
        rows = [i for i, s in enumerate(states) if s.sampling_params.min_tokens]
        stops = [i for i in rows if states[i].sampling_params.all_stop_token_ids]
        return [i for i in stops if _num_to_come(states[i]) > 0]

    def apply(self, logits: torch.Tensor) -> None:
        now = logits[self.rows, self.ids]
        logits[self.rows, self.ids] = now.masked_fill(self.to_come > 0, -torch.inf)

    def append(self, token_ids: torch.Tensor) -> None:
        self.to_come -= 1


def _num_to_come(state: SamplingState) -> int:
    """Number of tokens until the output has ``min_tokens``."""
    return state.sampling_params.min_tokens + state.num_prompt_tokens - len(state.token_ids)


class BadWords(LogitsProcessor):
    """A word's last token is impossible where the output ends with all its others."""

    def __init__(self, rows: list[int], states: Sequence[SamplingState], vocab_size, device):
        words = [(row, w) for row in rows for w in states[row].sampling_params.bad_words_token_ids]
        length = max(len(word) for _, word in words) - 1
        begins = [[_ANYTHING] * (length - len(word) + 1) + word[:-1] for _, word in words]
        outputs = [s.output_token_ids for s in states]
        tails = [([_NOTHING] * length + output)[len(output) :] for output in outputs]
        self.rows = make_tensor([row for row, _ in words], "int64", device)  # [words]
        # [words, longest - 1]: what comes before a word's last token
        self.begins = make_tensor(begins, "int64", device)
        self.lasts = make_tensor([word[-1] for _, word in words], "int64", device)  # [words]
        self.tails = make_tensor(tails, "int64", device)  # [n, longest - 1]: each output's end

    @staticmethod
    def rows_of(states: Sequence[SamplingState]) -> list[int]:
        return [i for i, s in enumerate(states) if s.sampling_params.bad_words_token_ids]

    def apply(self, logits: torch.Tensor) -> None:
        same = (self.begins == self.tails[self.rows]) | (self.begins == _ANYTHING)
        change = torch.zeros_like(self.lasts, dtype=logits.dtype)
        change = change.masked_fill(same.all(dim=-1), -torch.inf)
        # added, since several words may have the same last token
        logits.index_put_((self.rows, self.lasts), change, accumulate=True)

    def append(self, token_ids: torch.Tensor) -> None:
        if self.tails.shape[1]:
            self.tails = torch.cat([self.tails[:, 1:], token_ids[:, None]], dim=-1)
