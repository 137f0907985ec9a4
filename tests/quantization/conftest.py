"""A small checkpoint in floats, of each family whose quantized directories are tested."""

import pytest
import quantized_checkpoints as qc


@pytest.fixture(scope="module", params=["Llama", "Qwen2"])
def plain(request, tmp_path_factory):
    return qc.write_float(request.param, tmp_path_factory.mktemp(request.param) / "float")
