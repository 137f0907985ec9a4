"""Token ids of a text or of a pair of texts, cut so that the special tokens stay.

(vLLM: ``TokenizeParams`` in vllm/renderers/params.py)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TruncationParams:
    """Limits of the length of a pooling model's prompts.

    Args:
        truncate_prompt_tokens: of the whole prompt, special tokens included; -1: as many as the
            model takes; None: a prompt that is too long is an error.
        truncation_side: "left" or "right": ids are cut there, special ones too. None: the end of
            the text is cut (of a pair that of the longer one), and special tokens stay.
        max_tokens_per_query: of a pair's first text, without special tokens; 0: no limit.
        max_tokens_per_doc: of a pair's second text.
    """

    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0

    def keep(self, max_model_len: int) -> int | None:
        """Most tokens of a prompt that are kept; None: all."""
        keep = self.truncate_prompt_tokens
        return max_model_len if keep == -1 else keep

    def cut(self, ids: list[int], max_model_len: int) -> list[int]:
        """Cut a list that has a number for each token."""
        keep = self.keep(max_model_len)
        if keep is None or len(ids) <= keep:
            return ids
        return ids[len(ids) - keep :] if self.truncation_side == "left" else ids[:keep]


def encode_texts(
    tokenizer,
    texts: list[str],
    truncation: TruncationParams,
    max_model_len: int,
    add_special_tokens: bool = True,
) -> tuple[list[int], list[int]]:
    """Encode one text, or a pair of texts as one prompt.

    The tokenizer's own truncation is a state that all its users share, so it is not used.

    Args:
        tokenizer: a Hugging Face tokenizer.
        texts: one, or the two of a pair.
        truncation: what is kept.
        max_model_len: what -1 means.
        add_special_tokens: those that the tokenizer puts around a text, or between two.

    Returns:
        Token ids, and their types: 0, and 1 in a pair's second text where the tokenizer says so.
    """
    fast = _unlimited(tokenizer.backend_tokenizer)
    parts = [fast.encode(text, add_special_tokens=False) for text in texts]
    limits = (truncation.max_tokens_per_query, truncation.max_tokens_per_doc)
    for part, limit in zip(parts, limits, strict=False):
        if limit:
            part.truncate(limit)
    keep = truncation.keep(max_model_len)
    if keep is not None and truncation.truncation_side is None:
        pair = len(parts) == 2
        added = fast.num_special_tokens_to_add(pair) if add_special_tokens else 0
        for part, length in zip(parts, _lengths(parts, max(0, keep - added)), strict=True):
            part.truncate(length)
    whole = fast.post_process(*parts, add_special_tokens=add_special_tokens)
    return truncation.cut(whole.ids, max_model_len), truncation.cut(whole.type_ids, max_model_len)


def _unlimited(fast):
    """The tokenizer without the truncation and padding that Sentence Transformers' files set."""
    if fast.truncation is not None:
        fast.no_truncation()
    if fast.padding is not None:
        fast.no_padding()
    return fast


def _lengths(parts: list, room: int) -> list[int]:
    """Lengths that the parts are cut to: the longer one first, then both alike."""
    lengths = [len(part) for part in parts]
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    shorter = min(*lengths, room // 2)
    longer = room - shorter
    return [shorter, longer] if lengths[0] <= lengths[1] else [longer, shorter]
