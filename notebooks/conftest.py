"""Marks; and matplotlib's font cache, built before any notebook runs so that no cell reports it.

A cell with the tag ``needs-real`` stores what a model gives that people have: SmolLM2. Where that
model has not been pulled, such a cell must print the one sentence that says so, and nothing else;
all other cells are compared with what is stored, as ever.

With ``--draws`` the kernels say what they drew that another CPU might not: see ``draws.py``.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import matplotlib.font_manager  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))
import chapter_marks
import needs_real

os.environ["MINIVLLM_DEVICE"] = "cpu"  # what is stored, and compared, was recorded on one
if "PYTEST_XDIST_WORKER" in os.environ:  # a thread for each worker's kernels
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(config, items):
    """A notebook belongs to the chapter it is numbered by, and takes longer than a quick look."""
    sentence = needs_real.missing()
    known = {line.partition(":")[0] for line in config.getini("markers")}
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("slow")
            if (mark := f"chapter{item.path.name[:2]}") in known:
                item.add_marker(mark)
            if sentence is not None and needs_real.is_tagged(item.cell):
                item.cell.outputs = needs_real.outputs_without(sentence)


def pytest_addoption(parser):
    parser.addoption("--draws", action="store_true", help="name draws that are close to another")


def pytest_configure(config):
    chapter_marks.register(config)
    if config.getoption("--draws"):
        config.draws_home = home = tempfile.TemporaryDirectory()
        startup = Path(home.name, "profile_default", "startup")  # what every kernel runs first
        startup.mkdir(parents=True)
        shutil.copy(Path(__file__).parent / "draws.py", startup)
        config.close_draws = Path(home.name, "close_draws.txt")
        os.environ |= {"IPYTHONDIR": home.name, "CLOSE_DRAWS": str(config.close_draws)}


def pytest_terminal_summary(terminalreporter, config):
    file = getattr(config, "close_draws", None)
    if file is not None and file.is_file():
        terminalreporter.section("decisions that another CPU might not share")
        terminalreporter.write(file.read_text())


def pytest_unconfigure(config):
    if hasattr(config, "draws_home"):
        config.draws_home.cleanup()
