"""Models that people have, for tests marked real: MINIVLLM_CACHE_ROOT is where they are kept."""

from pathlib import Path

import pytest
from dequantized import load_dequantized, save_floats

from minivllm.models.pull import pull


def pytest_collection_modifyitems(items):
    """All tests of this folder need a model that people have."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("real")
            item.add_marker("slow")
            item.add_marker(pytest.mark.timeout(1800))


def pulled(name):
    """The path of a model, fetched unless it is in the cache folder. A test fails without it.

    To run these tests is to agree to the terms of the models.
    """
    try:
        return pull(name, agreed=True)
    except (OSError, ValueError) as error:
        pytest.fail(f"tests marked real need {name}: {error}", pytrace=False)


@pytest.fixture(scope="session")
def smollm2():
    """The GGUF file of SmolLM2-135M-Instruct."""
    return pulled("smollm2")


@pytest.fixture(scope="session")
def gemma3():
    """The GGUF file of Gemma 3 270M."""
    return pulled("gemma3")


@pytest.fixture(scope="session")
def minilm():
    """The Sentence Transformers directory of all-MiniLM-L6-v2."""
    return pulled("minilm")


@pytest.fixture(scope="session")
def dequantized(smollm2):
    """transformers' model of that file."""
    return load_dequantized(smollm2)


@pytest.fixture(scope="session")
def float_directory(smollm2, dequantized, tmp_path_factory):
    """Its floats as a Hugging Face directory, for `minivllm quantize`."""
    return save_floats(smollm2, dequantized, tmp_path_factory.mktemp("smollm2"))
