"""A small model for adapters, and an adapter that fits it."""

import pytest
from adapters import load, tensors_for, write_adapter


@pytest.fixture(scope="module")
def llama(tiny_llama):
    """Our model of a small random checkpoint with untied embeddings."""
    return load(tiny_llama)


@pytest.fixture
def good(llama, tmp_path):
    """A directory with an adapter that fits it, on q and v."""
    return write_adapter(tmp_path / "good", tensors_for(llama))
