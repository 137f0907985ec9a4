"""Number of functions that one plain decode step enters, and of their files.

Counted are the named functions of minivllm, and their files, that are entered under
``LLMEngine.step()`` while one sequence decodes one token, after some steps have warmed it up.
``sys.setprofile`` reports each call. Lambdas and comprehensions have no name and are left out.
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import minivllm
from minivllm import EngineArgs, LLMEngine, SamplingParams
from minivllm.models.product import SHAKE_SEED

pytestmark = pytest.mark.skipif(SHAKE_SEED is not None, reason="shaking is a function more")

PACKAGE = Path(minivllm.__file__).parent
PLAIN = {"enforce_eager": True, "attention_backend": "reference"}


def functions_of_a_step(**args) -> set[tuple[str, str]]:
    """File and name of each function that is entered."""
    engine = LLMEngine(EngineArgs(**args))
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    engine.add_request("a", {"prompt_token_ids": [11, 12, 13, 14]}, params)
    for _ in range(5):
        engine.step()
    entered = set()

    def note(frame, event, arg):
        code = frame.f_code
        path = Path(code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE) and not code.co_name.startswith("<"):
            # by line: two classes of a file may have methods with one name
            name = f"{code.co_name}:{code.co_firstlineno}"
            entered.add((str(path.relative_to(PACKAGE)), name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        (output,) = engine.step()
    finally:
        sys.setprofile(before)
    assert len(output.outputs[0].token_ids) == 6
    return entered


def promised(way: str) -> tuple[int, int]:
    """Functions and files that the README names, by default or with the plain path."""
    readme = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    pattern = {
        "plain": r"enters (\d+)\s+functions\s+in\s+(\d+)\s+files",
        "default": r"by default (\d+)\s+in\s+(\d+)",
    }[way]
    functions, files = re.search(pattern, readme).groups()
    return int(functions), int(files)


def test_a_plain_step_enters_few_functions():
    entered = functions_of_a_step(**PLAIN)
    counts = len(entered), len({file for file, _ in entered})
    assert counts[0] <= 76, sorted(entered)
    assert counts[1] <= 34, sorted(entered)
    assert counts == promised("plain"), "the README should give these two numbers"


@pytest.mark.skipif(find_spec("numba") is None, reason="the fast path needs numba")
def test_a_step_by_default_enters_no_more_than_the_fast_path_needs():
    """The README's numbers are those of one processor; another one may have a kernel more."""
    entered = functions_of_a_step()
    counts = len(entered), len({file for file, _ in entered})
    assert counts[0] <= 94, sorted(entered)
    assert counts == pytest.approx(promised("default"), abs=3), "the README should give these"
