"""Fixtures of the tests on a GPU: where they run, engines there and on the CPU, and the report.

    pytest -m gpu             in an environment with the extras
    pytest tests/gpu          with PYTHONPATH=., torch, triton and pytest alone

``MINIVLLM_GPU_TESTS_ON=interpreter`` runs them on a CPU: kernels under Triton's interpreter, on
smaller shapes, and CUDA graphs by a stand-in (``cuda_stand_ins``). What is about a card's own
memory is skipped there. ``MINIVLLM_GPU_REPORT`` is the JSON file's name, else ``gpu_report.json``.
"""

import gc
import os
from importlib.util import find_spec
from pathlib import Path

if os.environ.get("MINIVLLM_GPU_TESTS_ON") == "interpreter":  # Triton asks when it is imported
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import gpu_report
import pytest
import torch

HERE = Path(__file__).parent
INTERPRETED = os.environ.get("MINIVLLM_GPU_TESTS_ON") == "interpreter"
# The most telling first: if kernels are wrong, all else is.
ORDER = ["kernels", "llm", "graphs", "memory", "failures", "bandwidth"]
NO_GPU = (
    "tests/gpu: not run, for torch sees no GPU here; MINIVLLM_GPU_TESTS_ON=interpreter runs on a "
    "CPU what can be interpreted."
)
SECONDS = 120 if not INTERPRETED else 600  # none should need more than 20 on a card


def can_run():
    return INTERPRETED or torch.cuda.is_available()


def is_here(item):
    return HERE in item.path.parents


def pytest_collection_modifyitems(config, items):
    ours = [item for item in items if is_here(item)]
    places = [place for place, item in enumerate(items) if is_here(item)]
    ours.sort(key=lambda item: ORDER.index(item.path.stem.removeprefix("test_gpu_")))
    for place, item in zip(places, ours, strict=True):
        items[place] = item
        item.add_marker(pytest.mark.timeout(SECONDS))
        if not can_run():
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


def pytest_runtest_logreport(report):
    if can_run() and Path(report.fspath).name.startswith("test_gpu_"):
        gpu_report.note(report)


def pytest_terminal_summary(terminalreporter):
    if not can_run():
        skipped = terminalreporter.stats.get("skipped", [])
        if any(NO_GPU in str(report.longrepr) for report in skipped):
            terminalreporter.write_line(NO_GPU)
    elif gpu_report.results:
        path = Path(os.environ.get("MINIVLLM_GPU_REPORT", "gpu_report.json"))
        for line in gpu_report.finish(path, INTERPRETED):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def on_card():
    """True on a card, False under the interpreter."""
    return not INTERPRETED


@pytest.fixture(scope="session")
def device():
    return torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture
def card_only():
    """A test whose subject is the card itself."""
    if INTERPRETED:
        pytest.skip("about a card's own memory: not to be interpreted")


@pytest.fixture(autouse=True)
def _memory_is_given_back():
    yield
    gc.collect()
    if not INTERPRETED and torch.cuda.is_available():
        torch.cuda.empty_cache()


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def dtype(request):
    """Each dtype that the card has; bfloat16 begins with compute capability 8.0."""
    is_bfloat16 = request.param == "bfloat16" and not INTERPRETED
    if is_bfloat16 and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this card has no bfloat16")
    return getattr(torch, request.param)


def make_engine(**kwargs):
    if find_spec("transformers") is None or find_spec("tokenizers") is None:
        pytest.skip("an engine needs transformers and tokenizers, which are not installed")
    from minivllm import LLM

    limits = {
        "dtype": "float32", "max_model_len": 256, "num_gpu_blocks_override": 200, "max_num_seqs": 8,
    }  # fmt: skip
    return LLM(**(limits | kwargs))


@pytest.fixture
def on_device(device):
    """Make an engine on the device: on a card as it is by default, with CUDA graphs."""

    def make(**kwargs):
        if INTERPRETED:
            kwargs = {"attention_backend": "paged_triton", "enforce_eager": True} | kwargs
        return make_engine(device=device.type, **kwargs)

    return make


@pytest.fixture
def on_cpu():
    """Make an engine on the CPU, to compare with."""

    def make(**kwargs):
        return make_engine(device="cpu", attention_backend="paged_torch", **kwargs)

    return make
