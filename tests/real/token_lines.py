"""Ten thousand lines for tokenizers: prose, code, scripts, emoji, digits, special tokens.

Nothing is drawn from tables of the running Python (names of characters, say), so that the lines are
the same with each version of it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random

SOURCES = Path(__file__).parents[1] / "data" / "real"
NUMBER = 10_000
# tokens of SmolLM2's vocabulary that are no text, whole, cut and misspelt
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>",
    "<filename>", "<gh_stars>", "<issue_start>", "<issue_comment>", "<issue_closed>",
    "<jupyter_start>", "<jupyter_text>", "<jupyter_code>", "<jupyter_output>", "<jupyter_script>",
    "<empty_output>", "<|im_start|", "|im_end|>", "<| im_end |>", "<|IM_END|>", "<|im_end|",
)  # fmt: skip
GEMMA_SPECIAL = (
    "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "[multimodal]", "<unused0>", "<unused99>",
    "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<table>", "</td>",
    "<h1>", "<blockquote>", "<code>", "<i>", "<s>", "</s>", "<<s>", "<start_of_turn",
    "end_of_turn>", "< end_of_turn >", "<END_OF_TURN>", "<0x41>", "<0xE2>",
    "\u2581", "\u2581\u2581",
)  # fmt: skip
_BLANKS = (" ", "  ", "   ", "    ", "\t", "\t\t", " \t", "\n", "\n\n", "\r\n", " \n ", "\u00a0",
           "\u2003", "\u3000", "\u200b", "\ufeff")  # fmt: skip
UNASSIGNED = (0xA0000, 0xA00FF)  # code points that no version of Unicode has given to anything
# first and last code point of scripts, signs and rare planes; no surrogates
_RANGES = (
    (0x20, 0x7E), (0xA1, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF),
    (0x531, 0x586), (0x590, 0x5F4), (0x600, 0x6FF), (0x900, 0x97F), (0xE01, 0xE5B),
    (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2070, 0x209F),
    (0x20A0, 0x20BF), (0x2100, 0x218F), (0x2190, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x257F),
    (0x3041, 0x3096), (0x30A0, 0x30FF), (0x3400, 0x34FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xE000, 0xE0FF), (0xFB00, 0xFB06), (0xFF01, 0xFF5E), (0x1D400, 0x1D7FF), (0x20000, 0x200FF),
    UNASSIGNED,
)  # fmt: skip
_EMOJI = ((0x1F300, 0x1F64F), (0x1F680, 0x1F6C5), (0x1F900, 0x1F9FF), (0x2600, 0x27BF))
_DIGITS = ("0123456789", "٠١٢٣", "०१२३", "０１２３", "²³¹⁴", "½¼Ⅷ①")
_CONTRACTIONS = ("I'm", "I'VE", "we'll", "don't", "He'd", "'s", "'S", "''t", "it’s", "O'Neil")


def make_lines(special: Sequence[str] = SPECIAL) -> list[str]:
    """All lines, the same at each call and on each machine; with a model's special tokens."""
    rng = Random("lines for tokenizers")
    prose, code, languages = (
        (SOURCES / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        for name in ("prose", "code", "languages")
    )
    words = " ".join(prose).split()
    makers = (
        (20, lambda: _prose(rng, words)),
        (25, lambda: _code(rng, code)),
        (15, lambda: _cut(rng, rng.choice(languages))),
        (10, lambda: _numbers(rng, words)),
        (8, lambda: _emoji(rng, words)),
        (8, lambda: _special(rng, words, code, special)),
        (8, lambda: _characters(rng)),
        (6, lambda: _mixed(rng, words, languages)),
    )
    weights = [weight for weight, _ in makers]
    lines: dict[str, None] = {}  # in the order of drawing, each once
    while len(lines) < NUMBER:
        ((_, make),) = rng.choices(makers, weights)
        lines[make()] = None
    return list(lines)


def _prose(rng: Random, words: Sequence[str]) -> str:
    start = rng.randrange(len(words))
    return _cut(rng, " ".join(words[start : start + rng.randint(1, 40)]))


def _cut(rng: Random, text: str) -> str:
    """A text, or a part of it that may begin and end inside a word."""
    if rng.random() < 0.3:
        return text
    begin = rng.randrange(max(len(text) - 1, 1))
    return text[begin : begin + rng.randint(1, 60)]


def _code(rng: Random, code: Sequence[str]) -> str:
    start = rng.randrange(len(code))
    lines = code[start : start + rng.choice((1, 1, 1, 2, 5))]
    indent = rng.choice(("", "", " ", "  ", "    ", "\t", "        "))
    return rng.choice(("\n", "\n", "\r\n", "\n\n")).join(indent + line for line in lines)


def _numbers(rng: Random, words: Sequence[str]) -> str:
    """Numbers with blanks before them, behind them and in the middle of words."""
    parts = []
    for _ in range(rng.randint(1, 8)):
        digits = rng.choice(_DIGITS if rng.random() < 0.2 else _DIGITS[:1])
        number = "".join(rng.choice(digits) for _ in range(rng.randint(1, 7)))
        sign = rng.choice(("", "", "", "-", "+", "$", "#", ".", ",", "/", ":", "%", "e", "x"))
        parts.append(rng.choice(_BLANKS[:12]) * rng.randint(0, 3) + sign + number)
        if rng.random() < 0.4:
            parts.append(rng.choice(("", " ")) + rng.choice(words))
    return "".join(parts)


def _emoji(rng: Random, words: Sequence[str]) -> str:
    """Emoji alone and joined, with skin tones, variation selectors and flags."""
    parts = []
    for _ in range(rng.randint(1, 6)):
        first, last = rng.choice(_EMOJI)
        emoji = chr(rng.randint(first, last))
        kind = rng.randrange(5)
        if kind == 0:
            emoji += chr(rng.randint(0x1F3FB, 0x1F3FF))
        if kind == 1:
            emoji += "\ufe0f"
        if kind == 2:
            emoji += "\u200d" + chr(rng.randint(0x1F466, 0x1F469))
        if kind == 3:
            emoji = "".join(chr(rng.randint(0x1F1E6, 0x1F1FF)) for _ in range(2))
        parts.append(emoji)
        parts.append(rng.choice(("", "", " ", " " + rng.choice(words) + " ")))
    return "".join(parts)


def _special(rng: Random, words: Sequence[str], code: Sequence[str], special: Sequence[str]) -> str:
    """Special tokens in a text, with and without blanks around them."""
    parts = []
    for _ in range(rng.randint(1, 4)):
        parts.append(rng.choice(special))
        parts.append(rng.choice(("", "", " ", "  ", "\n", "\t")))
        parts.append(rng.choice((rng.choice(words), rng.choice(code)[:20], "", "7", "é", "中")))
        parts.append(rng.choice(("", "", " ", "\n")))
    begin = rng.choice(("", "", " ", "system", "1"))
    return begin + "".join(parts)


def _characters(rng: Random) -> str:
    """Characters of one script, or of any."""
    chosen = [rng.choice(_RANGES) for _ in range(rng.choice((1, 1, 3)))]
    length = rng.randint(1, 24)
    return "".join(
        rng.choice((" ", "")) * (rng.random() < 0.2) + chr(rng.randint(*rng.choice(chosen)))
        for _ in range(length)
    )


def _mixed(rng: Random, words: Sequence[str], languages: Sequence[str]) -> str:
    parts = []
    for _ in range(rng.randint(2, 6)):
        parts.append(
            rng.choice(
                (rng.choice(words), rng.choice(_BLANKS), rng.choice(_CONTRACTIONS),
                 _cut(rng, rng.choice(languages))[:8], str(rng.randrange(10**6)),
                 rng.choice(".,;:!?()[]{}<>\"'`~@#$%^&*-_=+|\\/") * rng.randint(1, 5))
            )
        )  # fmt: skip
        parts.append(rng.choice(("", " ")))
    return "".join(parts)


def digest(ids: Sequence[int]) -> bytes:
    """Four bytes that say which ids a line has."""
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).digest()[:4]
