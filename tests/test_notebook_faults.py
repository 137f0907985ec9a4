"""The faults that notebooks must notice: they fit the source, and a kernel imports what they say.

``.ci/faults.py`` runs the notebooks, every night.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "faults.py"
_spec = importlib.util.spec_from_file_location("notebook_faults", SCRIPT)
faults = sys.modules["notebook_faults"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(faults)


@pytest.mark.parametrize("name", faults.FAULTS)
def test_a_fault_fits_the_source_as_it_is(name):
    fault = faults.FAULTS[name]
    source = ROOT.joinpath(*fault.module.split(".")).with_suffix(".py").read_text("utf-8")
    wrong = fault.put_into(source)
    compile(wrong, fault.module, "exec")
    assert wrong != source
    assert len(list(ROOT.glob(f"notebooks/{fault.notebook}_*.ipynb"))) == 1


def test_there_are_ten_or_more_and_no_two_are_the_same():
    assert len({(fault.module, fault.wrong) for fault in faults.FAULTS.values()}) >= 10


def test_a_line_that_is_not_there_once_is_refused():
    fault = faults.Fault("minivllm.kv.block", "a line of another time", "", "03")
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


def test_a_report_is_read():
    xml = """<testsuites><testsuite>
    <testcase name="Cell 0"/><testcase name="Cell 1"><failure>Cell 1: Cell outputs differ</failure>
    </testcase><testcase name="Cell 2"><failure>Cell execution caused an exception</failure>
    </testcase></testsuite></testsuites>"""
    assert faults.read_report(xml) == (["1"], ["2"])
