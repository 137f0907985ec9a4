"""The tokenizer in a GGUF file as a Hugging Face one.

There are two kinds. ``gpt2`` is byte-level BPE: a list of merges, and a name for the regular
expression that cuts a text into words first. ``llama`` is SentencePiece's BPE: a token's score says
how early it is merged, a space is ``▁``, and what is in no token is spelled in bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from minivllm.quantization.gguf.reader import GGUFReader

_NORMAL = 1
_UNKNOWN = 2
_CONTROL = 3
_USER_DEFINED = 4
_UNUSED = 5
_KEY = "tokenizer.ggml.{}"
_MOST_LETTERS = 2**12  # of a token, which may be cut at any of them


def _words(digits: str) -> pre_tokenizers.PreTokenizer:
    """Llama 3's expression, and Qwen's, which has each digit alone."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+"
        r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_QWEN2 = _words(r"\p{N}")
_LLAMA3 = _words(r"\p{N}{1,3}")
_SMOLLM = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2])
# tokenizer.ggml.pre
_PRE_TOKENIZERS = {"gpt-2": _GPT2, "smollm": _SMOLLM, "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2,
                   "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3}  # fmt: skip


def load_tokenizer(path: str | Path):
    """Make the tokenizer of a GGUF file, a ``PreTrainedTokenizerFast``.

    Raises:
        ValueError: if the file has none, or one of a kind that we do not have.
    """
    try:
        return _load(GGUFReader(path))
    except ValueError:
        raise
    except Exception as error:  # the library has classes of its own
        raise ValueError(f"{path}: its tokenizer cannot be read: {error}") from error


def _load(reader: GGUFReader):
    from transformers import PreTrainedTokenizerFast

    kind = reader.get(_KEY.format("model"), str)
    if kind not in _KINDS:
        reader.refuse(_KEY.format("model"), kind, f"one of {', '.join(_KINDS)}")
    # 1. The vocabulary. Unused places may repeat a token; a token that is used may not.
    tokens = reader.get(_KEY.format("tokens"), list)
    longest = max(map(len, tokens), default=0)
    if longest > _MOST_LETTERS:
        reader.refuse("the length of a token", longest, f"at most {_MOST_LETTERS}")
    types = _array(reader, "token_type", len(tokens))
    vocabulary = {t: i for i, t in enumerate(tokens) if types[i] != _UNUSED}
    if len(vocabulary) < (types != _UNUSED).sum():
        twice = next(t for i, t in enumerate(tokens) if vocabulary.get(t, i) != i)
        reader.refuse("a token", twice, "there only once")
    # 2. The algorithm. Tokens that no text is split into are told to the tokenizer one by one.
    named = _named_tokens(reader, tokens)
    make, adds_bos = _KINDS[kind]
    tokenizer = make(reader, vocabulary, named.get("unk_token"))
    tokenizer.add_tokens(
        [
            AddedToken(token, special=types[i] != _USER_DEFINED, normalized=False)
            for token, i in vocabulary.items()
            if token and types[i] in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
    )
    # 3. What stands around each text; a file that says nothing leaves it to the algorithm.
    adds_bos = reader.get(_KEY.format("add_bos_token"), bool, adds_bos(reader))
    adds_eos = reader.get(_KEY.format("add_eos_token"), bool, False)
    before = [named["bos_token"]] if adds_bos and "bos_token" in named else []
    after = [named["eos_token"]] if adds_eos and "eos_token" in named else []
    if before or after:
        ids = [(token, tokens.index(token)) for token in dict.fromkeys(before + after)]
        processor = processors.TemplateProcessing([*before, "$A", *after], special_tokens=ids)
        tokenizer.post_processor = processor
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=reader.get("tokenizer.chat_template", str, None),
        clean_up_tokenization_spaces=False,
        **named,
    )


def _array(reader: GGUFReader, name: str, length: int) -> np.ndarray:
    """An array with a number for each token."""
    array = reader.get(_KEY.format(name), np.ndarray)
    if len(array) != length:
        reader.refuse(f"the length of {_KEY.format(name)}", len(array), f"{length}: the tokens'")
    return array


def _named_tokens(reader: GGUFReader, tokens: list[str]) -> dict[str, str]:
    """Special tokens by transformers' names."""
    named = {}
    for theirs, ours in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        key = _KEY.format(f"{theirs}_token_id")
        if key in reader.metadata:
            i = reader.get(key, int)
            if not 0 <= i < len(tokens) or not tokens[i]:
                reader.refuse(key, i, f"the id of one of the {len(tokens)} tokens")
            named[f"{ours}_token"] = tokens[i]
    return named


def _byte_level(reader: GGUFReader, vocabulary: dict[str, int], unknown: str | None) -> Tokenizer:
    is_qwen = reader.get("general.architecture", str).startswith("qwen")
    pre = reader.get(_KEY.format("pre"), str, "qwen2" if is_qwen else "gpt-2")
    if pre not in _PRE_TOKENIZERS:
        reader.refuse(_KEY.format("pre"), pre, f"one of {', '.join(_PRE_TOKENIZERS)}")
    merges = []
    for merge in reader.get(_KEY.format("merges"), list):
        pair = tuple(merge.split(" "))
        if len(pair) != 2:
            reader.refuse(f"an item of {_KEY.format('merges')}", merge, "two tokens and a space")
        merges.append(pair)
    is_llama3 = _PRE_TOKENIZERS[pre] is _LLAMA3  # which takes a word that is a token as it is
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=is_llama3))
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]
    if _PRE_TOKENIZERS[pre] is _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(
    reader: GGUFReader, vocabulary: dict[str, int], unknown: str | None
) -> Tokenizer:
    tokens = reader.get(_KEY.format("tokens"), list)
    scores = _array(reader, "scores", len(tokens))
    types = _array(reader, "token_type", len(tokens))
    # a token is made of any two that it can be cut into, the better its score, the earlier
    merges = [
        (token[:cut], token[cut:])
        for i in np.argsort(-scores, kind="stable")
        if types[i] == _NORMAL
        for token in (tokens[i],)
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    options: dict[str, Any] = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, **options))
    prefix = reader.get(_KEY.format("add_space_prefix"), bool, True)
    spaces = [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁")] * prefix + spaces)
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(back + [decoders.Strip(" ", 1, 0)] * prefix)
    return tokenizer


def _is_llama3(reader: GGUFReader) -> bool:
    return _PRE_TOKENIZERS.get(reader.metadata.get(_KEY.format("pre"), "")) is _LLAMA3


# tokenizer.ggml.model: how it is made, and whether a text begins with bos if the file is silent
_KINDS = {"gpt2": (_byte_level, _is_llama3), "llama": (_sentencepiece, lambda reader: True)}
