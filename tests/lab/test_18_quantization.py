"""Notebook 18: its figures, and the skills that it reads from a file."""

from pathlib import Path

import nbformat
import pytest

from minivllm import LLM
from minivllm.lab.quantize.skills import (
    cases_by_skill,
    count_right,
    measured_skills,
    save_rounded,
)
from minivllm.viz import number_line, pushed_error


def test_a_number_line_counts_the_codes_in_its_range():
    figure = number_line([0.0, 1.0, 2.2], {"wide": [-4, 0, 4], "narrow": [0, 1, 2]})
    assert figure.text.splitlines()[1:] == [
        "3 weights from 0.000 to 2.200",
        "wide    2 codes here, mean error 0.9333",
        "narrow  3 codes here, mean error 0.0667",
    ]
    assert "narrow: 3 codes here" in figure.alt
    keys = number_line([0.0, 1.0], {"e4m3": [0, 1]}, what="key", mark=[("keys", "of one token")])
    assert "2 keys from 0.000 to 1.000" in keys.text


def test_rounded_columns_are_told_from_those_that_move():
    figure = pushed_error([[1.4, -0.6], [1.0, -0.2], [1.0, -0.0]])
    assert [line.split() for line in figure.text.splitlines()[2:]] == [
        ["start", "+1.40", "-0.60"],
        ["after", "column", "0", "[+1.00]", "-0.20"],
        ["after", "column", "1", "[+1.00]", "[+0.00]"],
    ]
    assert "-0.20 ↑" in figure.svg


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: number_line([1.0], {"a": [1]}), "values must be two unlike numbers"),
        (lambda: number_line([1.0, 2.0], {}), "grids must be at least one"),
        (lambda: number_line([1.0, 2.0], {"a": []}), "grids\\['a'\\] must be numbers"),
        (lambda: pushed_error([[1.0], [1.0], [1.0]]), "steps must be rows of the same length"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, named):
    with pytest.raises(ValueError, match=named):
        draw()


def test_the_file_has_today_s_cases_and_its_numbers_come_out_again(tmp_path):
    cases, measured = cases_by_skill(), measured_skills()
    assert {skill: len(found) for skill, found in cases.items()} == measured["cases"]
    save_rounded(tmp_path, 2)
    llm = LLM(str(tmp_path), dtype="float32")
    assert count_right(llm, cases["small talk"]) == measured["2 bits"]["small talk"]


def test_what_is_said_of_the_table_is_what_the_table_shows():
    """Small talk fell deepest; capitals, learnt by heart as well, less than the longer tables."""
    measured = measured_skills()
    cases, two_bits = measured["cases"], measured["2 bits"]
    left = {skill: two_bits[skill] / number for skill, number in cases.items()}
    lost = {skill: measured["float"][skill] / cases[skill] - left[skill] for skill in cases}
    assert max(lost, key=lost.get) == min(left, key=left.get) == "small talk"
    for skill in ("table of 20 rows", "table of 30 rows", "json"):
        assert left["capital"] > left[skill]
    path = Path(__file__).parents[2] / "notebooks" / "18_quantization.ipynb"
    cells = {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}
    said, all_talk = cells["skills"].source, cases["small talk"]
    assert f"from {all_talk} of {all_talk} to {two_bits['small talk']}" in said
    assert f"{two_bits['capital']} of {cases['capital']} are left" in said
    assert "small talk fell deepest" in cells["end"].source
    rows = cells["reveal"].outputs[0].text.splitlines()
    shown = {row[:17].strip(): row[17:].split() for row in rows}
    for skill, number in cases.items():
        counts = [measured[way][skill] for way in measured if way != "cases"]
        assert [int(n) for n in shown[skill][1::2]] == counts
        assert int(shown[skill][0]) == number
