"""Token ids of a text or of a pair of texts, cut so that the special tokens stay.

(vLLM: ``TokenizeParams`` in vllm/renderers/params.py)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from minivllm.logger import init_logger
from minivllm.utils.validation import check, is_int, is_one_of, is_text, shown

logger = init_logger(__name__)
_PADS = "None: a pad would be read as a part of the prompt"


@dataclass
class TruncationParams:
    """Limits of the length of prompts, and how texts are encoded.

    Args:
        truncate_prompt_tokens: of the whole prompt, special tokens included; -1: as many as the
            model takes; None: a prompt that is too long is an error.
        truncation_side: "left" or "right": ids are cut there, special ones too. None: the text is
            cut where the tokenizer cuts, usually at its end (of a pair the longer one), and
            special tokens stay.
        max_tokens_per_query: of a pair's first text, without special tokens; 0: no limit.
        max_tokens_per_doc: of a pair's second text.
        add_special_tokens: those that the tokenizer puts around a text, or between two.
        do_lower_case: encode texts in lower case.
    """

    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    add_special_tokens: bool = True
    do_lower_case: bool = False

    def with_kwargs(self, tokenization_kwargs: Any, max_model_len: int) -> TruncationParams:
        """A copy that vLLM's ``tokenization_kwargs`` have changed; some names are transformers'.

        Those that vLLM does not know are ignored with a line in the log, as there.

        Args:
            tokenization_kwargs: a dict, or None.
            max_model_len: what -1 means, and a ``truncation`` without a ``max_length``.

        Raises:
            ValueError: for a value that cannot be, and for padding.
        """
        name = "tokenization_kwargs"
        given = tokenization_kwargs
        ok = given is None or (isinstance(given, dict) and all(map(is_text, given)))
        check(ok, name, given, "a dict of options for the tokenizer, or None")
        given = dict(given or {})
        most = given.pop("max_length", max_model_len)
        check(most is None or is_int(most, 1), "max_length", most, "an integer of at least 1")
        how = {field: given.pop(field, getattr(self, field)) for field in _OPTIONS}
        cuts = given.get("truncation")
        if cuts is True or is_one_of(cuts, ("longest_first",)):
            how["truncate_prompt_tokens"] = most
        elif is_one_of(cuts, ("do_not_truncate",)):
            how["truncate_prompt_tokens"] = None
        check(given.get("pad_prompt_tokens") is None, name, tokenization_kwargs, _PADS)
        pads = is_one_of(given.get("padding"), ("max_length",))
        check(not pads, name, tokenization_kwargs, _PADS)
        ignored = {key: value for key, value in given.items() if not _is_known(key, value)}
        if ignored:
            logger.warning("These tokenization_kwargs are ignored, as in vLLM: %s", shown(ignored))
        keep = how["truncate_prompt_tokens"]
        ok = keep is None or (is_int(keep, -1) and keep <= max_model_len)
        allowed = f"None, or from -1 to max_model_len={max_model_len}"
        check(ok, "truncate_prompt_tokens", keep, allowed)
        side = how["truncation_side"]
        ok = side is None or is_one_of(side, ("left", "right"))
        check(ok, "truncation_side", side, "'left', 'right' or None")
        for field in ("add_special_tokens", "do_lower_case"):
            check(isinstance(how[field], bool), field, how[field], "True or False")
        return replace(self, **how)

    def keep(self, max_model_len: int) -> int | None:
        """Most tokens of a prompt that are kept; None: all."""
        keep = self.truncate_prompt_tokens
        return max_model_len if keep == -1 else keep

    def cut(self, ids: list[int], max_model_len: int, tokenizer: Any = None) -> list[int]:
        """Cut a list that has a number for each token."""
        keep = self.keep(max_model_len)
        if keep is None or len(ids) <= keep:
            return ids
        side = self.truncation_side or _side(tokenizer)
        return ids[len(ids) - keep :] if side == "left" else ids[:keep]


_OPTIONS = ("truncate_prompt_tokens", "truncation_side", "add_special_tokens", "do_lower_case")
# Taken by with_kwargs, which says what each means; the last is of no use here.
_TAKEN: dict[str, tuple[Any, ...]] = {
    "truncation": (True, False, None, "longest_first", "do_not_truncate"),
    "padding": (False, None, "do_not_pad"),
    "pad_prompt_tokens": (None,),
    "needs_detokenization": (True, False, None),
}


def _is_known(name: str, value: Any) -> bool:
    return any(value is one or is_one_of(value, (one,)) for one in _TAKEN.get(name, ()))


def _side(tokenizer: Any) -> str:
    """The side where a tokenizer cuts texts that are too long."""
    return getattr(tokenizer, "truncation_side", "right")


def tokenized(prompt: Any, tokenizer: Any, how: TruncationParams, max_model_len: int) -> Any:
    """A prompt of ``LLM.generate`` with its token ids, cut; what is none stays as it is.

    Args:
        prompt: a text, a list of token ids, or a dict with one of them.
        tokenizer: a Hugging Face tokenizer; None: there is none.
        how: limits and options.
        max_model_len: what -1 means.
    """
    if isinstance(prompt, str):
        prompt = {"prompt": prompt}
    elif isinstance(prompt, (list, tuple)):
        prompt = {"prompt_token_ids": prompt}
    if not isinstance(prompt, dict):
        return prompt
    ids = prompt.get("prompt_token_ids")
    text = prompt.get("prompt")
    if isinstance(ids, (list, tuple)):
        return prompt | {"prompt_token_ids": how.cut(list(ids), max_model_len, tokenizer)}
    if ids is not None or tokenizer is None or text is None or not is_text(text):
        return prompt
    return prompt | {"prompt_token_ids": encode_texts(tokenizer, [text], how, max_model_len)[0]}


def encode_texts(
    tokenizer,
    texts: list[str],
    truncation: TruncationParams,
    max_model_len: int,
) -> tuple[list[int], list[int]]:
    """Encode one text, or a pair of texts as one prompt.

    The tokenizer's own truncation is a state that all its users share, so it is not used.

    Args:
        tokenizer: a Hugging Face tokenizer.
        texts: one, or the two of a pair.
        truncation: what is kept, and how texts are encoded.
        max_model_len: what -1 means.

    Returns:
        Token ids, and their types: 0, and 1 in a pair's second text where the tokenizer says so.
    """
    fast = _unlimited(tokenizer.backend_tokenizer)
    texts = [text.lower() for text in texts] if truncation.do_lower_case else texts
    parts = [fast.encode(text, add_special_tokens=False) for text in texts]
    special = truncation.add_special_tokens
    side = _side(tokenizer)
    limits = (truncation.max_tokens_per_query, truncation.max_tokens_per_doc)
    for part, limit in zip(parts, limits, strict=False):
        if limit:
            part.truncate(limit)
    keep = truncation.keep(max_model_len)
    if keep is not None and truncation.truncation_side is None:
        pair = len(parts) == 2
        added = fast.num_special_tokens_to_add(pair) if special else 0
        for part, length in zip(parts, _lengths(parts, max(0, keep - added)), strict=True):
            part.truncate(length, direction=side)
    whole = fast.post_process(*parts, add_special_tokens=special)
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
