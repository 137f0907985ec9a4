"""SmolLM2's tokenizer gives llama.cpp's ids; its chat template gives transformers' text."""

import pytest
from record import TOKENS
from token_lines import SOURCES, digest, make_lines

from minivllm import LLM
from minivllm.quantization.gguf import load_tokenizer

# The reason why a line has other ids than llama.cpp's, and how one sees that it is such a line.
OTHERS = {}
MOST_BYTES = 300_000  # of all that this comparison ships


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return load_tokenizer(smollm2)


def test_ids_of_llama_cpp(tokenizer):
    lines, theirs = make_lines(), TOKENS.read_bytes()
    assert len(theirs) == 4 * len(lines) == 40_000
    other = [
        line
        for i, line in enumerate(lines)
        if digest(tokenizer.encode(line)) != theirs[4 * i : 4 * i + 4]
    ]
    unexplained = [line for line in other if not any(is_one(line) for is_one in OTHERS.values())]
    assert unexplained == []
    assert len(other) <= 20


def test_ids_are_the_text_again(tokenizer):
    for line in make_lines()[::10]:
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
def llm(smollm2):
    return LLM(str(smollm2), max_model_len=512, num_gpu_blocks_override=64)


@pytest.mark.parametrize("generate", [True, False])
@pytest.mark.parametrize("name", CHATS)
def test_the_chat_template(name, generate, llm, smollm2):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    want = theirs.apply_chat_template(CHATS[name], add_generation_prompt=generate, tokenize=False)
    assert llm.preprocess_chat(CHATS[name], add_generation_prompt=generate) == want
