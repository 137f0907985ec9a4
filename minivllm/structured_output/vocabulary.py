"""Vocabulary: every token as the bytes that it adds to a text.

Two families of tokenizers make text that can be taken apart into bytes. *Byte-level* ones write
each byte as a printable character (GPT-2's alphabet); *SentencePiece* ones write spaces as ``▁``
and bytes that are in no token as ``<0x0A>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np


@dataclass(frozen=True)
class TrieLevel:
    """A level of the trie: all different token prefixes of one length."""

    parents: np.ndarray  # which beginning of the level before each goes on, int64 [m]
    last_bytes: np.ndarray  # with which byte, uint8 [m]
    ends: np.ndarray  # which beginnings are whole tokens, int64 [k]
    token_ids: np.ndarray  # and which tokens, int64 [k]; two may be the same text


class Vocabulary:
    """The tokens of a model as bytes.

    Args:
        tokens: by id; None for what is no text: special tokens, and ids without a token.
        eos_token_ids: the model's end-of-sequence tokens.
        encode: the usual token ids of a text that goes on where another ends.
    """

    def __init__(
        self,
        tokens: list[bytes | None],
        eos_token_ids: frozenset[int],
        encode: Callable[[str], list[int]],
    ):
        self.tokens = tokens
        self.eos_token_ids = eos_token_ids
        self._encode = encode

    def encode(self, text: str) -> list[int]:
        """The usual tokens of a text, which goes on where another ends: its bytes, and no others.

        Where the tokenizer would change the text, its longest tokens, one after the other.
        """
        tokens = self._encode(text)
        data = text.encode()
        if b"".join(self.tokens[i] or b"" for i in tokens) == data:
            return tokens
        tokens = []
        begin = 0
        while begin < len(data):
            ends = range(min(begin + self._longest, len(data)), begin, -1)
            end = next((end for end in ends if data[begin:end] in self._ids), None)
            if end is None:
                break
            tokens.append(self._ids[data[begin:end]])
            begin = end
        return tokens

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {token: i for i, token in enumerate(self.tokens) if token}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)

    @cached_property
    def trie(self) -> list[TrieLevel]:
        """The tokens as a trie, level by level, so that a level is read with one indexing."""
        text = [(i, token) for i, token in enumerate(self.tokens) if token]
        ids = np.array([i for i, _ in text], dtype=np.int64)
        lengths = np.array([len(token) for _, token in text], dtype=np.int64)
        data = np.frombuffer(b"".join(token for _, token in text), dtype=np.uint8)
        places = np.cumsum(lengths) - lengths  # of the byte to read next
        nodes = np.zeros_like(ids)  # where each token is in the level before
        levels: list[TrieLevel] = []
        while len(ids):
            beginnings, nodes = np.unique(nodes * 256 + data[places], return_inverse=True)
            whole = lengths == len(levels) + 1
            levels.append(
                TrieLevel(
                    parents=beginnings >> 8,
                    last_bytes=(beginnings & 255).astype(np.uint8),
                    ends=nodes[whole],
                    token_ids=ids[whole],
                )
            )
            on = ~whole
            ids = ids[on]
            lengths = lengths[on]
            places = places[on] + 1
            nodes = nodes[on]
        return levels

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def from_tokenizer(
        cls, tokenizer, vocab_size: int, eos_token_ids: frozenset[int]
    ) -> Vocabulary:
        """Make the vocabulary of a fast Hugging Face tokenizer; the model may have more logits.

        Raises:
            ValueError: if its tokens cannot be taken apart into bytes.
        """
        to_bytes = _spelling(tokenizer)
        tokens: list[bytes | None] = [None] * vocab_size
        for token, i in tokenizer.get_vocab().items():
            if i < vocab_size:
                tokens[i] = to_bytes(token)
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
        special = {i for i, token in added.items() if token.special}
        for i in special | set(eos_token_ids):
            if i < vocab_size:
                tokens[i] = None
        return cls(tokens, eos_token_ids, _encoder(tokenizer))


def _spelling(tokenizer) -> Callable[[str], bytes]:
    """The function from tokens to bytes for this tokenizer, chosen by its decoder."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    kinds = set() if decoder is None else set(_types(json.loads(decoder.__getstate__())))
    if "ByteLevel" in kinds:
        return _from_byte_alphabet
    if kinds & {"ByteFallback", "Metaspace"}:
        return _from_sentencepiece
    raise ValueError(
        "structured outputs need a fast tokenizer of the byte-level or the SentencePiece kind, "
        f"got {type(tokenizer).__name__} with the decoder {sorted(kinds) or None}."
    )


def _encoder(tokenizer) -> Callable[[str], list[int]]:
    """The function from a text to tokens, but for the blank that the tokenizer puts before it."""
    from tokenizers import Tokenizer

    backend = tokenizer.backend_tokenizer
    steps = {"normalizer": backend.normalizer, "pre_tokenizer": backend.pre_tokenizer}
    usual = {k: json.loads(step.__getstate__()) for k, step in steps.items() if step is not None}
    plain = {key: _without_blank(step) for key, step in usual.items()}
    if plain == usual:
        return partial(tokenizer.encode, add_special_tokens=False)
    whole = json.loads(backend.to_str()) | plain | {"truncation": None, "padding": None}
    blankless = Tokenizer.from_str(json.dumps(whole))
    return lambda text: blankless.encode(text, add_special_tokens=False).ids


def _without_blank(step: dict) -> dict | None:
    """A step of a tokenizer, or all inside it, that puts no blank before a text."""
    if step["type"] == "Prepend":
        return None
    if step["type"] == "Sequence":
        key = "normalizers" if "normalizers" in step else "pretokenizers"
        inner = map(_without_blank, step[key])
        return step | {key: [step for step in inner if step is not None]}
    no_blank: dict[str, dict] = {
        "Metaspace": {"prepend_scheme": "never"},
        "ByteLevel": {"add_prefix_space": False},
    }
    return step | no_blank.get(step["type"], {})


def _types(decoder: dict) -> list[str]:
    inner = [kind for d in decoder.get("decoders", ()) for kind in _types(d)]
    return [decoder["type"], *inner]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's byte alphabet: printable characters are themselves, other bytes 256, 257, ..."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _from_byte_alphabet(token: str) -> bytes:
    """Bytes of a byte-level token. Added tokens may hold other characters: these are plain text."""
    if all(char in _ALPHABET for char in token):
        return bytes(_ALPHABET[char] for char in token)
    return token.encode()


def _from_sentencepiece(token: str) -> bytes:
    if re.fullmatch("<0x[0-9A-F]{2}>", token):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()
