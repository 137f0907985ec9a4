"""The embedded model's trainer: tokens, tokenizer and chat template, start values, training."""

import random
from dataclasses import replace

import pytest
import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer

from minivllm import LLM, SamplingParams
from minivllm.embedded import embedded_model_path
from minivllm.embedded.data.chat_format import tool_call, tool_response, tools_section
from minivllm.embedded.data.corpus import samples
from minivllm.embedded.data.tables import TableShape, table_conversation
from minivllm.embedded.data.tools import TOOLS
from minivllm.lab.training import distill, train
from minivllm.lab.training.batches import Exchange, batches, encode, encoded_stream
from minivllm.lab.training.curriculum import DRAFT_PLAN, FULL_PLAN, QUICK_PLAN
from minivllm.lab.training.manifest import data_hashes, file_hashes, read_manifest
from minivllm.lab.training.network import make_network
from minivllm.lab.training.pointers import PointerBatch, pointer_loss, pointer_scores
from minivllm.lab.training.tokenization import load_tokenizer

pytestmark = pytest.mark.slow

CHECKPOINT = embedded_model_path()
QUICK_LOSS = 4.6
"""A network that learns is below 4 after the quick training, one that does not stays at 8."""


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(CHECKPOINT)


@pytest.fixture(scope="module")
def hugging_face_tokenizer():
    return AutoTokenizer.from_pretrained(CHECKPOINT)


def first_texts(count):
    source = samples(FULL_PLAN.stages[-1].mixture, 9)
    return [next(source).text for _ in range(count)]


# Samples as tokens


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
    for text in first_texts(30):
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


def test_a_quick_training_learns_and_goes_on(tmp_path, tokenizer):
    """A small network on small tables, in seconds; without learning the loss stays above 8."""
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    run = train.Run(tmp_path, 0, train.SMALL, QUICK_PLAN)
    assert run.run(minutes=0, steps=60, save_every=60, log_every=10) < QUICK_LOSS
    manifest = read_manifest(run.checkpoint)
    assert manifest["files"] == file_hashes(run.checkpoint)
    assert manifest["data"] == data_hashes(0, QUICK_PLAN.stages)

    resumed = train.Run(tmp_path, 0, train.SMALL, QUICK_PLAN)
    assert resumed.progress == run.progress
    for one, other in zip(run.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(one, other)
    assert resumed.run(minutes=0, steps=70, save_every=60, log_every=10) < QUICK_LOSS
    assert resumed.progress.steps == 70


def test_a_run_goes_on_with_what_it_was_begun(tmp_path, tokenizer):
    made = []

    def make():
        made.append(tokenizer)
        return tokenizer

    settings = {"seed": 3, "quick": True}
    for _ in range(2):
        train.begin(tmp_path / "run", settings, make)
        assert len(made) == 1
    assert load_tokenizer(tmp_path / "run").get_vocab() == tokenizer.get_vocab()
    with pytest.raises(typer.BadParameter, match=r"must be 3, .* was begun, got 4") as refused:
        train.begin(tmp_path / "run", settings | {"seed": 4}, make)
    assert refused.value.param_hint == "--seed"
    with pytest.raises(typer.BadParameter, match=r"must be True, .* got False"):
        train.begin(tmp_path / "run", settings | {"quick": False}, make)
    with pytest.raises(typer.BadParameter, match=r"must be True, .* got None"):
        train.begin(tmp_path / "run", {"seed": 3, "draft": True}, make)


def test_the_same_seed_gives_the_same_start():
    once, again, other = (make_network(400, train.SMALL, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert not torch.equal(once["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_heads_of_layer_0_look_back_at_the_start():
    """By their biases alone: here the tokens say nothing."""
    network = make_network(400, train.SMALL, 0)
    torch.nn.init.zeros_(network.model.embed_tokens.weight)
    with torch.no_grad():
        network.model(torch.zeros(1, 50, dtype=torch.long))
    q, k = network.model.layers[0].self_attn.handed_out
    places = torch.arange(50)
    for head in range(3):
        pointers = PointerBatch(places[None], places[None], places[None], places[None] >= 0)
        attention, _ = pointer_scores(q[:, head], k[:, head], pointers)
        assert attention[0, 3:].argmax(-1).tolist() == (places[3:] - head - 1).tolist()


def test_what_is_supervised_is_the_attention_that_is_paid(tokenizer):
    """From the queries and keys handed out: the same as transformers' own eager attention."""
    eager = AutoModelForCausalLM.from_pretrained(CHECKPOINT, attn_implementation="eager")
    network = AutoModelForCausalLM.from_pretrained(CHECKPOINT, attn_implementation="hand_out")
    ids = torch.tensor([tokenizer.encode("The capital of France is Paris.\n| 1 | a |").ids])
    queries = torch.arange(ids.shape[1])[None]
    with torch.no_grad():
        paid = eager(ids, output_attentions=True)
        torch.testing.assert_close(network(ids).logits, paid.logits, rtol=1e-4, atol=1e-4)
        for layer, wanted in zip(network.model.layers, paid.attentions, strict=True):
            q, k = layer.self_attn.handed_out
            for head in range(q.shape[1]):
                pointers = PointerBatch(queries, queries, queries + 1, queries >= 0)
                found, _ = pointer_scores(q[:, head], k[:, head], pointers)
                torch.testing.assert_close(found.exp(), wanted[:, head], rtol=1e-4, atol=1e-5)


# A draft of the embedded model


@pytest.fixture
def draft_run(tmp_path, tokenizer):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return distill.DraftRun(tmp_path, CHECKPOINT, seed=1, compile_layers=False)


def one_batch(tokenizer):
    stream = encoded_stream(DRAFT_PLAN.stages[0].mixture, tokenizer, "draft")
    return next(batches(stream, random.Random(1), 600))


def test_a_draft_comes_to_agree_with_its_teacher(draft_run, tokenizer):
    """On one batch, again and again."""
    batch = one_batch(tokenizer)
    found = [draft_run.step(batch, rate=1.0, pointer_weight=0.1) for _ in range(16)]
    assert found[-1]["loss"] < found[0]["loss"] / 2
    assert found[-1]["equal"] > found[0]["equal"]


def test_a_teacher_is_its_own_best_draft(draft_run, tokenizer):
    batch = one_batch(tokenizer)
    draft_run.network = draft_run.teacher
    hidden = draft_run.teacher.model(batch.ids, use_cache=False).last_hidden_state
    loss, values = draft_run.loss(hidden, batch)
    assert (loss.item(), values["equal"]) == (pytest.approx(0, abs=1e-6), 1.0)


def test_a_network_of_three_layers_has_its_circuits_a_layer_earlier(draft_run, tokenizer):
    """Heads begin as copiers there, and there attention is supervised."""
    batch, layers = one_batch(tokenizer), draft_run.network.model.layers
    copiers = [i for i, layer in enumerate(layers) if layer.self_attn.o_proj.weight.any()]
    assert copiers == [1, 2]
    draft_run.network.model(batch.ids, use_cache=False)
    guidance, shares = pointer_loss(draft_run.network, batch.pointers)
    guidance.backward()
    assert {"row", "cell", "question"} <= shares.keys()
    assert all(layers[i].self_attn.q_proj.weight.grad.any() for i in (1, 2))


def test_a_distilled_draft_drafts(draft_run):
    """However little it has learnt, the text is the model's; and the run goes on."""
    draft_run.run(minutes=0, steps=2, save_every=60, log_every=1)
    resumed = distill.DraftRun(draft_run.output, CHECKPOINT, seed=1, compile_layers=False)
    assert resumed.progress == draft_run.progress
    assert resumed.progress.steps == 2
    assert read_manifest(draft_run.checkpoint)["data"] == data_hashes(1, DRAFT_PLAN.stages)
    settings = {"max_model_len": 128, "num_gpu_blocks_override": 20}
    params = SamplingParams(temperature=0, max_tokens=12)
    config = {"model": str(draft_run.checkpoint), "num_speculative_tokens": 2}
    texts = [
        LLM(**settings, **more).generate("The capital of France is", params)[0].outputs[0].text
        for more in ({}, {"speculative_config": config})
    ]
    assert texts[0] == texts[1]
