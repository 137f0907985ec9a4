"""Marks, the nightly profile, and small random checkpoints: food when text does not matter."""

import os
import re
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from minivllm.logger import init_logger

if not torch.cuda.is_available():  # Triton asks when it is first imported: see attention/kernels
    os.environ.setdefault("TRITON_INTERPRET", "1")

# `pytest tests --hypothesis-profile=nightly`; see helpers.examples
settings.register_profile("nightly", max_examples=1000, stateful_step_count=150)


def pytest_collection_modifyitems(items):
    """The tests of chapter 04 are those in ``test_04_*.py`` and ``test_04b_*.py``."""
    for item in items:
        chapter = re.match(r"test_(\d\d|A\d)b?_", item.path.name)
        if item.path.parent == Path(__file__).parent and chapter is not None:
            item.add_marker(f"chapter{chapter[1]}")


@pytest.fixture(autouse=True)
def _the_log_as_it_was():
    """A command that runs in a test's process quiets the log for good."""
    logger = init_logger("minivllm")
    level = logger.level
    yield
    logger.setLevel(level)


def _save(model, directory):
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tiny_qwen2(tmp_path_factory):
    """A random Qwen2 with grouped heads and tied embeddings; no tokenizer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        tie_word_embeddings=True, eos_token_id=96, bos_token_id=None, initializer_range=0.4,
    )  # fmt: skip
    return _save(Qwen2ForCausalLM(config), tmp_path_factory.mktemp("tiny_qwen2"))


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    """A random Llama with untied embeddings, saved in several shards; no tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=89, hidden_size=32, intermediate_size=40, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128,
        tie_word_embeddings=False, eos_token_id=2, initializer_range=0.4,
    )  # fmt: skip
    directory = tmp_path_factory.mktemp("tiny_llama")
    LlamaForCausalLM(config).save_pretrained(directory, max_shard_size="20KB")
    return directory


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory):
    """A random Qwen2 whose tokens are single bytes, with a ChatML template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", clean_up_tokenization_spaces=False,
        additional_special_tokens=["<|im_start|>"],
    )  # fmt: skip
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    directory = tmp_path_factory.mktemp("tiny_chat")
    fast.save_pretrained(directory)
    torch.manual_seed(2)
    config = Qwen2Config(
        vocab_size=len(fast), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
        tie_word_embeddings=True, eos_token_id=fast.eos_token_id, bos_token_id=None,
        initializer_range=0.3,
    )  # fmt: skip
    return _save(Qwen2ForCausalLM(config), directory)
