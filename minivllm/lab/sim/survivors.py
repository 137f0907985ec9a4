"""RandomSurvivors: which beams go on, in place of a model's scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

from minivllm.request import Sequence
from minivllm.scheduling.output import TokenLogprobs


class RandomSurvivors:
    """Random scores of beam candidates, in place of a model's.

    Each of a beam's next tokens has the same chance, however likely the beam was before. So beams
    die out and fork as they would if none were better than the others.
    """

    def __init__(self, seed: int = 0):
        self._rng = Random(seed)

    def draw(
        self, sequences: Mapping[str, Sequence], sampled: Iterable[str]
    ) -> dict[str, TokenLogprobs]:
        """Log probabilities of next tokens, for those of the sampled sequences that are beams."""
        survivors = {}
        for seq_id in sampled:
            seq = sequences.get(seq_id)
            if seq is not None and seq.request.beam_params is not None:
                num_candidates = 2 * seq.request.n
                token_ids = list(range(num_candidates))
                # the search adds what the beam has so far: take it away
                scores = [self._rng.random() - seq.cumulative_logprob for _ in token_ids]
                survivors[seq_id] = TokenLogprobs([0, *token_ids], [0.0, *scores], 1)
        return survivors
