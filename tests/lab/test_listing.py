"""Listings: our source as notebooks show it."""

import inspect
from pathlib import Path

import nbformat
import pytest

from minivllm.course.asking.listing import listing, show
from minivllm.kv.block_table import BlockTable
from minivllm.lab.sim.cost import Hardware
from minivllm.scheduling.policies import SchedulingPolicy

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def test_a_docstring_is_folded_to_its_first_line():
    source = inspect.getsource(BlockTable.slot)
    lines = listing(BlockTable.slot).text.splitlines()
    assert lines[0] == "# minivllm/kv/block_table.py"
    assert lines[1] == "def slot(self, position: int) -> int:"
    assert lines[2].endswith('``block_id * block_size + offset``."""')
    assert "Raises" in source
    assert "Raises" not in "\n".join(lines)
    assert [line.strip() for line in lines[3:]] == [
        line.strip() for line in source.split('"""')[2].strip().splitlines()
    ]


def test_a_class_keeps_its_methods_and_a_property_is_its_getter():
    text = listing(SchedulingPolicy).text
    assert text.count("def ") == 3
    assert "With ``prefill_first``" not in text
    assert listing(Hardware.ridge).text.splitlines()[2] == "def ridge(self) -> float:"


def test_a_piece_of_it():
    text = listing(BlockTable.slot, first="if position", last="return").text
    assert text.splitlines()[1].startswith("if position < 0")
    assert "return" not in text
    with pytest.raises(ValueError, match="no line with 'if postion'"):
        listing(BlockTable.slot, first="if postion")


def test_an_empty_listing_is_refused():
    """The last line is looked for behind the first one, which must not contain it, too."""
    from minivllm.cpu.gemm import quantized_panels

    with pytest.raises(ValueError, match="would be empty: its first line has 'else', too"):
        listing(quantized_panels.pack, "columns = ", "else")
    with pytest.raises(ValueError, match="would be empty: its first line has 'slot', too"):
        listing(BlockTable.slot, last="slot")
    with pytest.raises(ValueError, match="the source has no line with 'columns = '"):
        listing(quantized_panels.pack, "offsets = ", "columns = ")
    with pytest.raises(ValueError, match="would be empty: there is no code behind '# The blocks"):
        listing(commented, "# The blocks", "return")
    text = listing(quantized_panels.pack, "if q.dtype == torch.uint8:", "else:").text
    assert text.count("\n") == 4


def commented():
    # The blocks are counted here.

    return 0


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem.partition("_")[0])
def test_no_listing_of_a_notebook_is_empty(path):
    for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
        for output in cell.get("outputs", []):
            text = output.get("data", {}).get("text/plain", "")
            if text.startswith("# minivllm/"):
                code = [line for line in text.splitlines() if line.strip() and line[0] != "#"]
                assert code, f"{path.stem}[{number}]: {text}"


def test_it_is_highlighted_where_it_can_be(capsys):
    data = listing(BlockTable.slot)._repr_mimebundle_()
    assert data["text/markdown"] == f"```python\n{data['text/plain']}\n```"
    show(BlockTable.slot, BlockTable.must_copy)  # no notebook here: the text is printed
    assert capsys.readouterr().out.count("# minivllm/kv/block_table.py\n") == 2


def test_branches_of_a_later_chapter_are_left_out_and_counted():
    from minivllm.engine.core import EngineCore

    without = ("draft", "structured_output", "checkpoint", "except")
    whole = listing(EngineCore.step).text.splitlines()
    lines = listing(EngineCore.step, without=without).text.splitlines()
    assert lines[-1] == f"    # left out: {len(whole) - len(lines) + 1} lines with " + ", ".join(
        without
    )
    text = "\n".join(lines[:-1])
    assert not [word for word in (*without, "try:") if word in text]
    assert "    output = self.executor.execute_model(scheduler_output)" in lines  # dedented
    assert [line for line in lines if "# " in line and "left out" not in line][1:] == [
        f"    # {line}"
        for line in (
            "1. Schedule: how many tokens of each sequence, and the slots of their K and V.",
            "2. Run the model, and sample.",
            "3. Append, fork, finish, free.",
        )
    ]
    with pytest.raises(ValueError, match="that has 'drfat'"):
        listing(EngineCore.step, without=("drfat",))
