"""The tokenizer: byte-level BPE whose pieces suit copying.

A word is the same token at the start of a line, inside quotes, in a table and in a sentence: the
space before it is a token of its own. (Only some frequent small words, which are hardly ever
copied, carry their space.) Pipes and other punctuation swallow the space behind them, runs of
spaces and of dashes are single tokens, and so is the end of a cell with all its padding (a padded
table stays short, and a cell's end unlike the space between two words). Digits come in chunks of
at most two, all of which are tokens: few enough that every one is met often.

`transformers` (from version 5) cuts text for every Qwen2 model by Qwen2's own pattern, whatever
tokenizer.json says. So the merges are learnt with the pattern that suits copying, and then
restated (`restate_for_qwen2`) such that Qwen2's pattern gives the same tokens: pipes, punctuation
with its space, and numbers become *added tokens*, which are found before any pattern applies.
"""

import json
import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path

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
from tokenizers.trainers import BpeTrainer

from minivllm.utils.toml_data import load_toml

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END]
WHOLE_TOKENS = ["<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>",
                "</tool_response>"]  # fmt: skip
LONGEST_RUN = 40
REPEATS = 1000
"""How often the pieces that must become tokens are repeated in the tokenizer's training text."""

_DATA = load_toml(__package__, "tokenization")
SMALL_WORDS = _DATA["small_words"].split()
PATTERN = "|".join(_DATA["pattern"]).replace("SMALL_WORDS", "|".join(SMALL_WORDS))
QWEN2_PATTERN = "|".join(_DATA["qwen2_pattern"])
SPACE = "Ġ"
"""How byte-level BPE writes a space."""


def _runs_and_numbers() -> list[str]:
    """Text that makes the merges for runs and for all numbers of two digits."""
    runs = [" " * length for length in range(2, LONGEST_RUN + 1)]
    runs += ["-" * length for length in range(2, LONGEST_RUN + 1)]
    digits = "0123456789"
    return runs + ["".join(pair) for pair in product(digits, digits)]


def _cut_by(tokenizer: Tokenizer, pattern: str) -> None:
    """Let the pattern say where text is cut into words of bytes."""
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, by_bytes])
    tokenizer.decoder = decoders.ByteLevel()


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn the merges from sample texts; the same texts give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    _cut_by(tokenizer, PATTERN)
    trainer = BpeTrainer(
        vocab_size=vocab_size - len(WHOLE_TOKENS),
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, *_runs_and_numbers() * REPEATS], trainer)
    return restate_for_qwen2(tokenizer)


def _bare_words(
    vocabulary: dict[str, int], merges: list[list[str]], words: list[str], unused: list[str]
) -> None:
    """Give each small word merges of its own, first in the numbers of unused tokens.

    The merges come last: other words are put together before a small word can claim their start.
    """
    for word in words:
        text = Tokenizer(models.BPE(vocabulary, [tuple(pair) for pair in merges]))
        first, *rest = text.encode(word).tokens
        for piece in rest:
            merges.append([first, piece])
            first += piece
            if first not in vocabulary:
                vocabulary[first] = vocabulary.pop(unused.pop(0)) if unused else len(vocabulary)
    merges.extend([SPACE, word] for word in words)


def _cell_ends() -> list[str]:
    """The ends of padded cells: their spaces, the pipe, and the space behind that.

    If they were several tokens, the last space before ``" | "`` would be the token that also
    stands between two words of a cell, and a cell that nearly fills its column would not show
    where it ends.
    """
    padding = (" " * width for width in range(1, LONGEST_RUN + 1))
    return [spaces + pipe for spaces in padding for pipe in ("|", "| ")]


def restate_for_qwen2(learnt: Tokenizer) -> Tokenizer:
    """The same tokens (with few exceptions) under Qwen2's pattern and normalization."""
    model = json.loads(learnt.to_str())["model"]
    vocabulary = model["vocab"]
    merges = model["merges"]
    for token in WHOLE_TOKENS:
        vocabulary[token] = len(vocabulary)
    words = [word for word in SMALL_WORDS if SPACE + word in vocabulary]
    spaced = [token for token in vocabulary if SPACE in token and token.strip(SPACE)]
    letter = re.compile(r"[^\W\d_]")
    punctuation = [token for token in spaced if not letter.search(token.replace(SPACE, ""))]
    merges = [pair for pair in merges if "".join(pair) not in spaced]
    unused = [token for token in spaced if token not in punctuation and token[1:] not in words]
    _bare_words(vocabulary, merges, words, unused=unused)
    for token in punctuation:
        vocabulary[token.replace(SPACE, " ")] = vocabulary.pop(token)
    numbers = [token for token in vocabulary if re.fullmatch("[0-9]{2}", token)]
    whole = ["|", *(token.replace(SPACE, " ") for token in punctuation), *numbers]

    tokenizer = Tokenizer(models.BPE(vocabulary, [tuple(pair) for pair in merges]))
    tokenizer.normalizer = normalizers.NFC()
    _cut_by(tokenizer, QWEN2_PATTERN)
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    whole += WHOLE_TOKENS + _cell_ends()
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in whole])
    return tokenizer


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a checkpoint directory."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def load_closing_tokenizer(directory: Path) -> Tokenizer:
    """The same, but every text ends with ``<|im_end|>``: a token that has read the whole text."""
    tokenizer = load_tokenizer(directory)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {TURN_END}",
        pair=f"$A {TURN_END} $B:1 {TURN_END}:1",
        special_tokens=[(TURN_END, tokenizer.token_to_id(TURN_END))],
    )
    return tokenizer
