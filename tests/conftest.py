"""Marks, the nightly profile, and small random checkpoints: food when text does not matter."""

import os
import re
import runpy
import shutil
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # a thread each, before torch counts the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import chapter_marks
import combinations
import pytest
import torch
from hypothesis import settings

from minivllm.course.playground.process import PythonProcess
from minivllm.logger import init_logger

if "SLOW_MESSAGES" in os.environ:  # see slow_messages/: in this process, and in those it starts
    folder = Path(__file__).parent / "slow_messages"
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    slow = runpy.run_path(str(folder / "sitecustomize.py"))["slow"]
    PythonProcess.ask = slow(PythonProcess.ask)  # the playground's, by a pipe of another kind

if not torch.cuda.is_available():  # Triton asks when it is first imported: see attention/kernels
    os.environ.setdefault("TRITON_INTERPRET", "1")

# See helpers.examples. A run of the suite looks at fewer examples; the night, at many:
# `pytest tests --hypothesis-profile=nightly`
settings.register_profile("suite", settings.default, max_examples=25)
settings.register_profile("nightly", max_examples=1000, stateful_step_count=150)
settings.load_profile("suite")

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_configure(config):
    chapter_marks.register(config)
    config.pluginmanager.register(combinations)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One process where a GPU is tested: several would share its memory and its time."""
    return 0 if config.option.markexpr == "gpu" else None


def pytest_collection_modifyitems(config, items):
    """The tests of chapter 05 are those in ``test_05_*.py``, those of the fast path in ``cpu/``."""
    known = {line.partition(":")[0] for line in config.getini("markers")}
    for item in items:
        chapter = re.match(r"test_(\d\d|A\d)", item.path.name)
        mark = f"chapter{chapter[1]}" if chapter else None
        if Path(__file__).parent in item.path.parents and mark in known:
            item.add_marker(mark)
        if item.path.parent == Path(__file__).parent / "cpu":
            item.add_marker("cpu")


@pytest.fixture(autouse=True)
def _the_log_as_it_was():
    """A command that runs in a test's process quiets the log, and shows a part of it, for good."""
    logger, shown = init_logger("minivllm"), init_logger("minivllm.cpu.compiling")
    level = logger.level
    yield
    logger.setLevel(level)
    shown.handlers.clear()
    shown.propagate = True
    shown.setLevel("NOTSET")


@pytest.fixture(scope="module")
def chromium():
    """A headless Chromium, for tests marked browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail('tests marked browser need playwright: pip install -e ".[browser]"')
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = next(filter(None, map(shutil.which, CHROMIUM)), own)
        if not Path(found).exists():
            pytest.fail(
                f"tests marked browser need one of {', '.join(CHROMIUM)} in the PATH, or: "
                "playwright install chromium"
            )
        browser = playwright.chromium.launch(executable_path=found)
        yield browser
        browser.close()


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
