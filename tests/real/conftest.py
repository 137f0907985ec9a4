"""Models that people have, for tests marked real: MINIVLLM_CACHE_ROOT is where they are kept."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from minivllm.models.pull import pull
from minivllm.quantization.gguf import load_tokenizer


def pytest_collection_modifyitems(items):
    """All tests of this folder need a model that people have."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("real")
            item.add_marker("slow")
            item.add_marker(pytest.mark.timeout(1800))


def pulled(name):
    """The path of a model, fetched unless it is in the cache folder. A test fails without it."""
    try:
        return pull(name)
    except (OSError, ValueError) as error:
        pytest.fail(f"tests marked real need {name}: {error}", pytrace=False)


@pytest.fixture(scope="session")
def smollm2():
    """The GGUF file of SmolLM2-135M-Instruct."""
    return pulled("smollm2")


@pytest.fixture(scope="session")
def minilm():
    """The Sentence Transformers directory of all-MiniLM-L6-v2."""
    return pulled("minilm")


@pytest.fixture(scope="session")
def dequantized(smollm2):
    """transformers' model of that file: its own reader makes floats of the blocks."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    )
    return model.eval()


@pytest.fixture(scope="session")
def float_directory(smollm2, dequantized, tmp_path_factory):
    """Those floats as a Hugging Face directory, for `minivllm quantize`."""
    directory = tmp_path_factory.mktemp("smollm2")
    config = dequantized.config.to_dict()
    del config["quantization_config"]  # transformers does not save such a model itself
    config["architectures"] = [type(dequantized).__name__]
    (directory / "config.json").write_text(json.dumps(config))
    tensors = dict(dequantized.state_dict())
    del tensors["lm_head.weight"]  # tied
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    load_tokenizer(smollm2).save_pretrained(directory)
    return directory
