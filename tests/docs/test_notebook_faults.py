"""Faults that notebooks and tests must notice: they fit the source, and who must see them is there.

``.ci/faults.py`` runs the notebooks and the tests, every night.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "faults.py"
_spec = importlib.util.spec_from_file_location("notebook_faults", SCRIPT)
faults = sys.modules["notebook_faults"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(faults)


@pytest.mark.parametrize("name", faults.FAULTS)
def test_a_fault_fits_the_source_as_it_is(name):
    fault = faults.FAULTS[name]
    source = (ROOT / "minivllm" / fault.file).read_text("utf-8")
    wrong = fault.put_into(source)  # raises unless the right line is there once
    compile(wrong, fault.module, "exec")
    assert wrong != source


@pytest.mark.parametrize("name", faults.FAULTS)
def test_the_notebook_or_test_that_must_see_a_fault_is_there(name):
    fault = faults.FAULTS[name]
    if fault.is_for_a_notebook:
        assert len(list(ROOT.glob(f"notebooks/{fault.seen_by}_*.ipynb"))) == 1
    else:
        file, _, test = fault.seen_by.partition("::")
        (path,) = ROOT.glob(f"tests/**/{file}")
        assert not test or f"def {test}(" in path.read_text("utf-8")


def test_there_are_thirty_or_more_no_two_the_same_and_in_every_folder_of_the_engine():
    found = {(fault.file, fault.wrong) for fault in faults.FAULTS.values()}
    assert len(found) == len(faults.FAULTS) >= 30
    folders = {file.partition("/")[0] for file, _ in found}
    assert folders >= {
        "attention", "cpu", "engine", "entrypoints", "kv", "metrics", "models", "sampling",
        "scheduling", "spec_decode", "structured_output", "worker",
    }  # fmt: skip


def test_a_line_that_is_not_there_once_is_refused():
    fault = faults.Fault("kv/block.py", "a line of another time", "", "03")
    for source in ("", "a line of another time\n" * 2):
        with pytest.raises(ValueError, match="not once"):
            fault.put_into(source)


def in_a_process(code: str, fault: str | None) -> str:
    """Output of this code, after the script has run as a kernel runs it."""
    env = {name: value for name, value in os.environ.items() if name != "FAULT"}
    env |= {"FAULT": fault} if fault else {}
    run = f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    begin = run if fault else ""
    done = subprocess.run(
        [sys.executable, "-c", begin + code], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_process_has_the_fault_and_its_listing_has_not():
    code = (
        "import inspect\n"
        "from minivllm.scheduling.policies import SchedulingPolicy as P\n"
        "print(P().victim([1, 2]), 'return running[-1]' in inspect.getsource(P))\n"
    )
    assert in_a_process(code, None).split() == ["2", "True"]
    assert in_a_process(code, "the wrong victim").split() == ["1", "True"]


def test_a_test_that_fails_is_named_and_one_that_passes_is_not():
    right = "test_12_random.py::test_a_number_never_reaches_0_or_1"
    wrong = "test_12_random.py::test_a_key_of_splitmix64_gives_the_published_stream"
    found = faults.run_tests({right, wrong}, faults.FAULTS["another hash"])
    assert found == [wrong.partition("::")[2]]


def test_a_report_is_read():
    xml = """<testsuites><testsuite>
    <testcase name="Cell 0"/><testcase name="Cell 1"><failure>Cell 1: Cell outputs differ</failure>
    </testcase><testcase name="Cell 2"><error>a fixture</error></testcase></testsuite>
    </testsuites>"""
    assert faults.failures(xml) == [("Cell 1", "Cell 1: Cell outputs differ")]
