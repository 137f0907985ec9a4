"""Logprobs in OpenAI's two forms: four lists for completions, a list of tokens for chat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minivllm.outputs import Logprob

LOWEST = -9999.0  # JSON has no minus infinity


def finite(logprob: float) -> float:
    """A finite logprob for JSON: vLLM's number in place of minus infinity."""
    return max(logprob, LOWEST)


@dataclass(frozen=True)
class TokenNames:
    """Names of tokens in logprobs: their text, or "token_id:17".

    Args:
        tokenizer: for tokens whose text is not known; without one it is empty.
        as_ids: name tokens by id.
    """

    tokenizer: Any
    as_ids: bool

    def name(self, token_id: int, logprob: Logprob | None) -> str:
        """A token's name. ``logprob`` is its entry, if it has one."""
        return f"token_id:{token_id}" if self.as_ids else self.text(token_id, logprob)

    def text(self, token_id: int, logprob: Logprob | None) -> str:
        """A token's text."""
        if logprob is not None and logprob.decoded_token is not None:
            return logprob.decoded_token
        return "" if self.tokenizer is None else self.tokenizer.decode([token_id])


def completion_logprobs(
    token_ids: Sequence[int],
    logprobs: Sequence[dict[int, Logprob] | None],
    most: int,
    names: TokenNames,
    offset: int = 0,
) -> dict[str, list]:
    """Logprobs in the form of /v1/completions.

    Args:
        token_ids: the tokens.
        logprobs: the entries of each token; None for the first of a prompt.
        most: number of best tokens to show; -1 for all. The token itself is always shown.
        names: the names of tokens.
        offset: characters before the first token.
    """
    lists: dict[str, list] = {
        "text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": [],
    }  # fmt: skip
    for token_id, known in zip(token_ids, logprobs, strict=True):
        own = None if known is None else known[token_id]
        token = names.name(token_id, own)
        lists["text_offset"].append(offset)
        lists["tokens"].append(token)
        lists["token_logprobs"].append(None if own is None else finite(own.logprob))
        top = None
        if known is not None:
            top = {
                names.name(other, entry): finite(entry.logprob)
                for place, (other, entry) in enumerate(known.items())
                if most == -1 or place <= most
            }
        lists["top_logprobs"].append(top)
        offset += len(token)
    return lists


def chat_logprobs(
    token_ids: Sequence[int],
    logprobs: Sequence[dict[int, Logprob]],
    most: int,
    names: TokenNames,
) -> dict[str, list]:
    """Logprobs in the form of /v1/chat/completions. Arguments as for ``completion_logprobs``.

    The token itself is the first of its top_logprobs at any rank, as in vLLM.
    """
    content = []
    for token_id, known in zip(token_ids, logprobs, strict=True):
        own = known[token_id]
        best = [
            {"token": token, "logprob": finite(entry.logprob), "bytes": list(token.encode())}
            for place, (other, entry) in enumerate(known.items())
            if most == -1 or place < most
            for token in (names.name(other, entry),)
        ]
        content.append(
            {
                "token": names.name(token_id, own),
                "logprob": finite(own.logprob),
                "bytes": list(names.text(token_id, own).encode()),
                "top_logprobs": best,
            }
        )
    return {"content": content}


def prompt_logprobs(
    logprobs: Sequence[dict[int, Logprob] | None] | None,
) -> list[dict[int, dict] | None] | None:
    """Logprobs of a prompt's tokens by token id; None for the first."""
    if logprobs is None:
        return None
    return [None if known is None else _plain(known) for known in logprobs]


def _plain(known: dict[int, Logprob]) -> dict[int, dict]:
    return {
        token_id: {
            "logprob": finite(entry.logprob),
            "rank": entry.rank,
            "decoded_token": entry.decoded_token,
        }
        for token_id, entry in known.items()
    }
