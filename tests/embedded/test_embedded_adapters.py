"""The adapters that ship: their files, and what the model says with each of them merged in."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file

from minivllm import embedded_adapter_path, embedded_model_path
from minivllm.embedded.data.adapter_cases import unseen_samples
from minivllm.embedded.data.pirate import pirate_talk
from minivllm.lab.training.batches import encode
from minivllm.lab.training.export import load_network
from minivllm.lab.training.lora import save_adapter, train_adapter
from minivllm.lab.training.manifest import file_hashes, read_manifest
from minivllm.lab.training.progress import exact_rates, rate
from minivllm.lab.training.tokenization import load_tokenizer

REACHED = {"pirate": 0.6, "sql-lora": 0.7}
TASK = "[user] Write a SQL query to answer the question based on the table schema.\n\n context: "
QUERIES = {
    "CREATE TABLE table_name_74 (icao VARCHAR, airport VARCHAR)\n\n"
    " question: Name the ICAO for lilongwe international airport": "  SELECT icao FROM "
    "table_name_74 WHERE airport = 'lilongwe international airport'",
    "CREATE TABLE table_name_11 (nationality VARCHAR, elector VARCHAR)\n\n"
    " question: When Anchero Pantaleone was the elector what is under nationality?": "  SELECT "
    "nationality FROM table_name_11 WHERE elector = 'Anchero Pantaleone'",
}


def merged(directory):
    """The network with ``W + s B A`` in place of each W."""
    network = load_network(embedded_model_path())
    config = json.loads((directory / "adapter_config.json").read_text())
    tensors = load_file(directory / "adapter_model.safetensors")
    for name in [name for name in tensors if "lora_A" in name]:
        a, b = tensors[name].float(), tensors[name.replace("lora_A", "lora_B")].float()
        layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        network.get_submodule(layer).weight.data += config["lora_alpha"] / config["r"] * b @ a
    return network


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(embedded_model_path())


@pytest.mark.parametrize("name", REACHED)
def test_it_is_small_and_its_manifest_fits(name):
    directory = embedded_adapter_path(name)
    assert (directory / "adapter_model.safetensors").stat().st_size <= 360_000
    manifest = read_manifest(directory)
    assert manifest["files"] == file_hashes(directory)
    assert manifest["scores"]["exact"] >= REACHED[name]


@pytest.mark.parametrize("name", REACHED)
def test_unseen_cases_come_out_as_the_manifest_says(name, tokenizer):
    network, cases = merged(embedded_adapter_path(name)), unseen_samples(name)[::4]
    promised = read_manifest(embedded_adapter_path(name))["scores"]["exact"]
    found = rate(exact_rates(network, (encode(tokenizer, case) for case in cases)))
    assert abs(found - promised) <= 0.15


@pytest.mark.parametrize("asked", QUERIES)
def test_the_queries_of_the_notes_come_out(asked, tokenizer):
    ids = torch.tensor([tokenizer.encode(f"{TASK}{asked} [/user] [assistant]").ids])
    network = merged(embedded_adapter_path("sql-lora"))
    said = network.generate(ids, max_new_tokens=60, do_sample=False, eos_token_id=0, pad_token_id=0)
    assert tokenizer.decode(said[0, ids.shape[1] :].tolist()) == f"{QUERIES[asked]} [/assistant]"


def test_training_learns_and_gives_the_same_again(tmp_path):
    for number in range(2):
        network = load_network(embedded_model_path())
        losses = train_adapter(network, pirate_talk, steps=4)
        save_adapter(network, tmp_path / str(number))
    assert losses[-1] < 0.8 * losses[0]
    assert file_hashes(tmp_path / "0") == file_hashes(tmp_path / "1")


def test_training_text_holds_nothing_that_is_held_out():
    rng = random.Random(0)
    drawn = "".join(pirate_talk(rng).text for _ in range(300))
    unseen = [sample for sample in unseen_samples("pirate") if sample.skill != "table"]
    answers = {s.text[slice(*span)] for s in unseen for _, span in s.answers}
    assert not [answer for answer in answers if answer in drawn]


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="one of pirate, sql-lora, got 'spanish'"):
        embedded_adapter_path("spanish")
