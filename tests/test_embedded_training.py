"""The embedded model: its training text, tokenizer, training loop, files, and what it can do."""

import random
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from minivllm.embedded import embedded_model_path
from minivllm.embedded.data.chat_format import tool_call, tool_response, tools_section
from minivllm.embedded.data.corpus import OTHER_SKILLS, samples
from minivllm.embedded.data.lists import WORDS
from minivllm.embedded.data.tables import TableShape, table_conversation
from minivllm.embedded.data.tools import TOOLS
from minivllm.embedded.evaluation.suites import all_suites, cases_of, table_cases
from minivllm.embedded.training.curriculum import CONTINUED, FROM_NOTHING, MOSTLY_LARGE, QUICK
from minivllm.embedded.training.encoding import encode
from minivllm.embedded.training.exchange import Exchange
from minivllm.embedded.training.export import load_network
from minivllm.embedded.training.manifest import data_hashes, file_hashes, read_manifest
from minivllm.embedded.training.network import Network
from minivllm.embedded.training.start import take_over
from minivllm.embedded.training.tokenization import load_tokenizer

pytestmark = pytest.mark.slow

CHECKPOINT = embedded_model_path()
MEGABYTE = 1_000_000
QUICK_LOSS = 4.6
"""A network that learns is below 4 after the quick training, one that does not stays at 8."""


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(CHECKPOINT)


@pytest.fixture(scope="module")
def hugging_face_tokenizer():
    return AutoTokenizer.from_pretrained(CHECKPOINT)


def first_texts(mixture, seed, count=40):
    source = samples(mixture, seed)
    return [next(source).text for _ in range(count)]


# The training text


@pytest.mark.parametrize("stage", FROM_NOTHING.stages, ids=lambda stage: stage.name)
def test_same_seed_gives_same_text_and_another_seed_another(stage):
    once, again, other = (first_texts(stage.mixture, seed) for seed in (1, 1, "evaluation"))
    assert once == again
    assert not {text for text in once if "\n|" in text} & set(other)


def test_held_out_names_are_not_in_the_training_text():
    text = "".join(first_texts(MOSTLY_LARGE, 5, count=100))
    names = set(WORDS.held_out_last_names) - set(WORDS.streets)
    assert not [name for name in names if f" {name} " in text]


def test_there_are_sixty_capitals():
    assert len(WORDS.capitals) == 60


@pytest.mark.parametrize("seed", range(20))
def test_an_answer_holds_its_cell_and_the_name(seed):
    shape = TableShape(rows=(3, 12), questions=(5, 5))
    for case in cases_of(table_conversation(random.Random(seed), shape)):
        if case.label == "small talk":
            continue
        assert case.expected.startswith("The ")
        assert case.expected.endswith(".")
        if case.label == "missing":
            assert case.expected.endswith(" is not in the table.")
        else:
            assert " is " in case.expected


def test_copies_repeat_their_source():
    for seed in range(20):
        for draw in OTHER_SKILLS.values():
            sample = draw(random.Random(seed))
            for copy in sample.copies:
                assert sample.text[slice(*copy.target)] == sample.text[slice(*copy.source)]


def test_copy_pointers_lead_to_the_token_that_is_said_next(tokenizer):
    """But for the rare word that is cut differently in its two places."""
    hits = []
    for seed in range(20):
        sample = table_conversation(random.Random(seed), TableShape())
        sample.gathers = []
        sample.copies = [replace(copy, closes=False) for copy in sample.copies]
        encoded = encode(tokenizer, sample)
        for steps in encoded.pointers.values():
            hits += [encoded.ids[key] == encoded.ids[query + 1] for query, key, _ in steps]
    assert len(hits) > 1000
    assert sum(hits) / len(hits) > 0.99


@pytest.mark.parametrize("seed", range(5))
def test_exchanged_tokens_are_the_same_everywhere_and_leave_the_rest_alone(tokenizer, seed):
    sample = table_conversation(random.Random(seed), TableShape(invented=0.0))
    before = encode(tokenizer, sample)
    after = Exchange(tokenizer).apply(random.Random(seed), before)
    pairs = set(zip(before.ids, after.ids, strict=True))
    assert len(pairs) == len(set(before.ids))
    changed = {old for old, new in pairs if old != new}
    assert len(changed) > 5
    outside = [i for i, copied in zip(before.ids, before.copied, strict=True) if not copied]
    assert not changed & set(outside)


# Tokenizer and chat template


@pytest.mark.parametrize(
    "text",
    [
        "| 1   | John Doe      | 29  |\n|-----|---------------|\n",
        "naïve “quotes” — dash… 😀 日本語 1234567\t\r\n  end  ",
        '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Łódź"}}\n</tool_call>',
        "".join(chr(code) for code in range(32, 0x250)),
    ],
)
def test_any_text_survives_the_tokenizer(hugging_face_tokenizer, tokenizer, text):
    ids = hugging_face_tokenizer(text)["input_ids"]
    assert hugging_face_tokenizer.decode(ids) == text
    assert tokenizer.encode(text).ids == ids


def test_transformers_cuts_the_training_text_as_training_does(hugging_face_tokenizer, tokenizer):
    for text in first_texts(MOSTLY_LARGE, 9, count=30):
        assert hugging_face_tokenizer(text)["input_ids"] == tokenizer.encode(text).ids


def test_numbers_and_padding_are_short(tokenizer):
    for number in range(100):
        assert len(tokenizer.encode(str(number)).ids) == 1
    for width in range(1, 41):
        assert len(tokenizer.encode(" " * width).ids) == 1


def test_the_end_of_a_cell_is_one_token_however_it_is_padded(hugging_face_tokenizer):
    for spaces in range(1, 41):
        for pipe in ("| ", "|"):
            ids = hugging_face_tokenizer(f"| El Salvador{' ' * spaces}{pipe}\n")["input_ids"]
            ends = [token for token in ids if "|" in hugging_face_tokenizer.decode([token])]
            assert hugging_face_tokenizer.decode(ends[1:]) == " " * spaces + pipe
            assert ids[-2:] == [*ends[1:], ids[-1]]


def test_chat_template_writes_what_training_reads(hugging_face_tokenizer):
    def written(messages, **options):
        return hugging_face_tokenizer.apply_chat_template(messages, tokenize=False, **options)

    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": "How is the weather in Łódź?"}
    tools = [tool.schema(random.Random(1)) for tool in TOOLS[:2]]
    arguments = {"location": "Łódź"}
    call = {"type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    result = {"temperature": 3}
    turns = [
        system,
        user,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": '{"temperature": 3}'},
    ]
    asked = "<|im_start|>user\nHow is the weather in Łódź?<|im_end|>\n"
    assert written([user], add_generation_prompt=True) == asked + "<|im_start|>assistant\n"
    assert written([system, user]) == "<|im_start|>system\nBe brief.<|im_end|>\n" + asked
    assert written(turns, tools=tools) == (
        f"<|im_start|>system\nBe brief.\n\n{tools_section(tools)}<|im_end|>\n{asked}"
        f"<|im_start|>assistant\n{tool_call('get_weather', arguments)}<|im_end|>\n"
        f"<|im_start|>user\n{tool_response(result)}<|im_end|>\n"
    )


# Training


def test_a_quick_training_learns(tmp_path, tokenizer):
    """A small network on small tables, in seconds; without learning the loss stays above 8."""
    from minivllm.embedded.training.train import SMALL, Run

    torch.manual_seed(0)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    run = Run(tmp_path, seed=0, config=SMALL, plan=QUICK)
    assert run.run(minutes=0, steps=60, save_every=60, log_every=10) < QUICK_LOSS
    assert (tmp_path / "checkpoint" / "model.safetensors").exists()
    resumed = Run(tmp_path, seed=0, config=SMALL, plan=QUICK)
    assert resumed.progress.steps == 60


def test_a_training_starts_from_the_weights_of_another():
    """Known tokens keep their vectors, a new one is the mean of the pieces it replaces."""
    old_tokenizer = load_tokenizer(CHECKPOINT)
    tokenizer = load_tokenizer(CHECKPOINT)
    tokenizer.add_tokens(["|| "])
    old = load_network(CHECKPOINT)
    network = Network(replace(old.config, vocab_size=tokenizer.get_vocab_size()))
    take_over(network, tokenizer, CHECKPOINT)
    before, after = old.model.embed_tokens.weight, network.model.embed_tokens.weight
    assert torch.equal(after[:-1], before)
    pieces = old_tokenizer.encode("|| ").ids
    torch.testing.assert_close(after[-1], before[pieces].mean(0))
    assert torch.equal(
        network.model.layers[4].mlp.up_proj.weight, old.model.layers[4].mlp.up_proj.weight
    )


# The checkpoint that ships


def test_checkpoint_is_small_and_reads_long_prompts():
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= 16 * MEGABYTE
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    assert model.config.model_type == "qwen2"
    assert model.config.max_position_embeddings >= 4096
    assert model.dtype == torch.float32


def test_training_network_is_qwen2(tokenizer):
    """Same logits as `transformers`' Qwen2 from the same files."""
    network = load_network(CHECKPOINT)
    reference = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    ids = torch.tensor([tokenizer.encode("The capital of France is Paris.\n| 1 | a |").ids])
    with torch.no_grad():
        logits = network.logits(network(ids)[0])
        torch.testing.assert_close(logits, reference(ids).logits, rtol=1e-4, atol=1e-4)


def test_manifest_fits_the_files_and_the_text():
    manifest = read_manifest(CHECKPOINT)
    assert manifest["files"] == file_hashes(CHECKPOINT)
    assert manifest["data"] == data_hashes(manifest["seed"], CONTINUED.stages)


@pytest.fixture(scope="module")
def llm():
    from minivllm import LLM

    return LLM(model=str(CHECKPOINT))


def share_right(llm, cases):
    from minivllm.embedded.evaluation.evaluate import score

    results = [right for label in score(llm, cases).values() for right in label]
    return sum(results) / len(results)


@pytest.mark.parametrize(("rows", "padded"), [(3, False), (10, True), (30, True)])
def test_tables_are_read_as_well_as_the_manifest_says(llm, rows, padded):
    drawing = "padded" if padded else "unpadded"
    promised = read_manifest(CHECKPOINT)["scores"]["suites"][f"table, {rows} rows, {drawing}"]
    assert share_right(llm, table_cases("test", rows, padded, 24)) >= promised - 0.15


@pytest.mark.parametrize(
    "suite", ["capital, chat", "capital, text", "small talk", "tool call", "json"]
)
def test_other_skills_are_as_good_as_the_manifest_says(llm, suite):
    promised = read_manifest(CHECKPOINT)["scores"]["suites"][suite]
    cases = all_suites("test", 20)[suite][:30]
    assert share_right(llm, cases) >= promised - 0.15
