"""Log probabilities of a position in vLLM's form, with the text of each token.

(vLLM: vllm/v1/engine/logprobs.py)
"""

from __future__ import annotations

from collections.abc import Callable

from minivllm.engine.detokenizer import BROKEN
from minivllm.outputs import Logprob
from minivllm.scheduling.output import TokenLogprobs


def as_dict(logprobs: TokenLogprobs, tokenizer, before: list[int]) -> dict[int, Logprob]:
    """Logprobs of a position by token id: of the token and of the most likely, in vLLM's form.

    Args:
        logprobs: of one place.
        tokenizer: for the tokens' texts; None makes none.
        before: the last tokens before that place, since a token may be a part of a character.
    """
    ranks = [logprobs.rank, *range(1, len(logprobs.token_ids))]
    found: dict[int, Logprob] = {}
    for token_id, logprob, rank in zip(logprobs.token_ids, logprobs.logprobs, ranks, strict=True):
        if token_id not in found:
            text = None if tokenizer is None else token_text(tokenizer.decode, before, token_id)
            found[token_id] = Logprob(logprob, rank, text)
    return found


def token_text(decode: Callable[[list[int]], str], before: list[int], token_id: int) -> str:
    """The text of one token behind others: "" for a part of a character, all of it for the last.

    So a token that ends inside a character has no text yet: what it begins with goes to the last
    one, too.

    Args:
        decode: token ids to text.
        before: the tokens before it; a character has at most four bytes, so no more than the last
            three matter.
        token_id: the token.
    """
    text = decode([token_id])
    if not text.endswith(BROKEN):
        return text
    for n in range(1, min(3, len(before)) + 1):
        whole = decode([*before[-n:], token_id])
        if not whole.endswith(BROKEN):
            return whole
    return ""
