"""Token bans: stop tokens before ``min_tokens``, and the last tokens of ``bad_words``.

(vLLM: vllm/v1/worker/gpu/sample/bad_words.py, BadWordsState; logit_bias.py, LogitBiasState)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minivllm.sampling.interface import LogitsProcessor, SamplingState
from minivllm.utils.tensors import make_tensor

_NOTHING, _ANYTHING = -1, -2  # no token there yet; any token would do


class MinTokens(LogitsProcessor):
    """No end-of-sequence or stop token before the output is long enough."""

    def __init__(self, rows: torch.Tensor, ids: torch.Tensor, to_come: torch.Tensor):
        self.rows, self.ids = rows, ids  # int64 [pairs]: which token is out of bounds in which row
        self.to_come = to_come  # int64 [pairs]: for how many more steps

    @classmethod
    def of(
        cls, states: Sequence[SamplingState], vocab_size: int, device: torch.device
    ) -> MinTokens | None:
        triples = []
        for row, s in enumerate(states):
            to_come = s.sampling_params.min_tokens - (len(s.token_ids) - s.num_prompt_tokens)
            if to_come > 0:
                triples += [(row, i, to_come) for i in s.sampling_params.all_stop_token_ids]
        if not triples:
            return None
        return cls(*(make_tensor(x, "int64", device) for x in zip(*triples, strict=True)))

    def apply(self, logits: torch.Tensor) -> None:
        now = logits[self.rows, self.ids]
        logits[self.rows, self.ids] = now.masked_fill(self.to_come > 0, -torch.inf)

    def append(self, token_ids: torch.Tensor) -> None:
        self.to_come -= 1


class BadWords(LogitsProcessor):
    """A word's last token is impossible where the output ends with all its others."""

    def __init__(
        self, rows: torch.Tensor, begins: torch.Tensor, lasts: torch.Tensor, tails: torch.Tensor
    ):
        self.rows = rows  # int64 [words]: where each is bad
        self.begins = begins  # int64 [words, longest - 1]: what comes before a word's last token
        self.lasts = lasts  # int64 [words]
        self.tails = tails  # int64 [n, longest - 1]: how each row's output ends

    @classmethod
    def of(
        cls, states: Sequence[SamplingState], vocab_size: int, device: torch.device
    ) -> BadWords | None:
        words = [
            (r, w) for r, s in enumerate(states) for w in s.sampling_params.bad_words_token_ids
        ]
        if not words:
            return None
        length = max(len(word) for _, word in words) - 1
        begins = [[_ANYTHING] * (length - len(word) + 1) + word[:-1] for _, word in words]
        outputs = [s.output_token_ids for s in states]
        tails = [([_NOTHING] * length + output)[len(output) :] for output in outputs]
        return cls(
            make_tensor([row for row, _ in words], "int64", device),
            make_tensor(begins, "int64", device),
            make_tensor([word[-1] for _, word in words], "int64", device),
            make_tensor(tails, "int64", device),
        )

    def apply(self, logits: torch.Tensor) -> None:
        same = (self.begins == self.tails[self.rows]) | (self.begins == _ANYTHING)
        change = torch.zeros_like(self.lasts, dtype=logits.dtype)
        change = change.masked_fill(same.all(dim=-1), -torch.inf)
        # added, since several words may have the same last token
        logits.index_put_((self.rows, self.lasts), change, accumulate=True)

    def append(self, token_ids: torch.Tensor) -> None:
        if self.tails.shape[1]:
            self.tails = torch.cat([self.tails[:, 1:], token_ids[:, None]], dim=-1)
