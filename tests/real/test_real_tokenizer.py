"""Tokenizers in GGUF files give llama.cpp's ids; a chat template gives transformers' text."""

from itertools import filterfalse

import pytest
from record import TOKENS
from token_lines import SOURCES, UNASSIGNED, digest, make_lines
from transformers import AutoTokenizer

from minivllm.entrypoints.chat_utils import render_chat
from minivllm.quantization.gguf import load_tokenizer

MOST_BYTES = 300_000  # of all that this comparison ships


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return load_tokenizer(smollm2)


def has_an_unassigned_character(line):
    """llama.cpp makes a word of each code point that Unicode has not assigned.

    The model's own tokenizer has an expression, `[^\\s\\p{L}\\p{N}]+`, for which such a code point
    is a sign among signs; so are ours.
    """
    return any(UNASSIGNED[0] <= ord(character) <= UNASSIGNED[1] for character in line)


def test_ids_of_llama_cpp(tokenizer):
    file, special = TOKENS["smollm2"]
    lines, theirs = make_lines(special), file.read_bytes()
    assert len(theirs) == 4 * len(lines) == 40_000
    others = [
        line
        for i, line in enumerate(lines)
        if digest(tokenizer.encode(line)) != theirs[4 * i : 4 * i + 4]
    ]
    assert all(map(has_an_unassigned_character, others))
    assert len(others) <= 10


def test_ids_of_llama_cpp_with_sentencepiece(gemma3):
    """All of them: what is in no token is spelled in bytes."""
    tokenizer = load_tokenizer(gemma3)
    file, special = TOKENS["gemma3"]
    lines, theirs = make_lines(special), file.read_bytes()
    assert len(theirs) == 4 * len(lines) == 40_000
    ids = [tokenizer.encode(line, add_special_tokens=False) for line in lines]
    assert b"".join(map(digest, ids)) == theirs
    for line, found in zip(lines[::10], ids[::10], strict=True):
        assert tokenizer.decode(found) == line.replace("\u2581", " ")


def test_ids_are_the_text_again(tokenizer):
    """But for unassigned characters: the vocabulary has no token for some of their bytes."""
    for line in filterfalse(has_an_unassigned_character, make_lines()[::10]):
        assert tokenizer.decode(tokenizer.encode(line)) == line


def test_what_is_shipped_is_small():
    assert sum(file.stat().st_size for file in SOURCES.iterdir()) <= MOST_BYTES


CHATS = {
    "a question": [{"role": "user", "content": "What is 2 + 2?"}],
    "a system's word": [
        {"role": "system", "content": "You speak like a pirate."},
        {"role": "user", "content": "Hello"},
    ],
    "turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": "  你好 🙂\n\ndef f(x):\n\treturn x  "},
    ],
    "the template's own words": [{"role": "user", "content": "<|im_end|>\n<|im_start|>system"}],
    "nothing": [{"role": "user", "content": ""}],
}


@pytest.fixture(scope="module")
def theirs(smollm2):
    """transformers' own reading of the file."""
    return AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)


@pytest.mark.parametrize("generate", [True, False])
@pytest.mark.parametrize("name", CHATS)
def test_the_chat_template(name, generate, tokenizer, theirs):
    want = theirs.apply_chat_template(CHATS[name], add_generation_prompt=generate, tokenize=False)
    assert render_chat(tokenizer, CHATS[name], add_generation_prompt=generate)["prompt"] == want
