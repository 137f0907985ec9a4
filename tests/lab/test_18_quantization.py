"""Notebook 18: its figures, and the skills that it reads from a file."""

import pytest

from minivllm import LLM
from minivllm.lab.quantize.skills import (
    cases_by_skill,
    count_right,
    measured_skills,
    save_rounded,
)
from minivllm.viz import bit_fields, number_line, pushed_error, word_tiles


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


def test_fields_begin_at_the_lowest_bits_and_are_written_from_the_highest():
    figure = bit_fields({"a": [("s0", 6), ("s4", 2)], "b": [("s4", 4), ("m4", 4)]})
    assert figure.text.splitlines()[2:] == ["a  s4:2 s0:6", "b  m4:4 s4:4"]


def test_a_word_is_drawn_where_its_numbers_are():
    figure = word_tiles({"GPTQ": [(0, 3), (1, 3)]}, mark=[("GPTQ", "one output")])
    assert "GPTQ  0,3 1,3" in figure.text
    assert figure.text.endswith("^ GPTQ: one output")


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: number_line([1.0], {"a": [1]}), "values must be two unlike numbers"),
        (lambda: number_line([1.0, 2.0], {}), "grids must be at least one"),
        (lambda: number_line([1.0, 2.0], {"a": []}), "grids\\['a'\\] must be numbers"),
        (lambda: pushed_error([[1.0], [1.0], [1.0]]), "steps must be rows of the same length"),
        (lambda: bit_fields({"a": [("x", 4)], "b": [("x", 8)]}), "words must be words of the same"),
        (lambda: word_tiles({"a": [(16, 0)]}), "words\\['a'\\] must be pairs of numbers below 16"),
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
