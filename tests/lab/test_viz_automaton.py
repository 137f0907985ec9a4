"""Figures of notebook 15: the automaton, and strips of the vocabulary."""

import xml.etree.ElementTree as ET

import pytest

from minivllm.course.ch15.figures.automaton import label_of
from minivllm.structured_output.dfa import DFA
from minivllm.viz import TokenStrip, automaton, token_strips

SVG = "{http://www.w3.org/2000/svg}"


def words(figure) -> list[str]:
    return [element.text for element in ET.fromstring(figure.svg).iter(f"{SVG}text")]


def test_an_automaton_in_words():
    figure = automaton(DFA(r"\d+(\.\d\d)?"), notes=["110", "112"], path=[0, 1, 1, 2])
    assert str(figure).splitlines() == [
        r"The automaton of \d+(\.\d\d)?",
        "5 states, the text may end in 2 (double circles)",
        " 0       0-9 -> 1  [110]",
        " 1 (end) . -> 2, 0-9 -> 1  [112]",
        " 2       0-9 -> 3",
        " 3       0-9 -> 4",
        " 4 (end) -",
        "path: 0 1 1 2",
    ]
    assert figure.alt.endswith("5 states, the text may end in 2 (double circles).")


@pytest.mark.parametrize(
    "pattern", [r"\d+(\.\d\d)?", "(a|b)*abb", "Rome|Romania|Paris", "(é|ü)+", "a{0,30}", "a*"]
)
def test_every_state_and_every_label_is_drawn_inside_the_figure(pattern):
    dfa = DFA(pattern)
    figure = automaton(dfa)
    drawn = words(figure)
    assert {str(state) for state in range(dfa.num_states)} <= set(drawn)
    root = ET.fromstring(figure.svg)
    width, height = float(root.get("width")), float(root.get("height"))
    assert width <= 1000
    for element in root.iter(f"{SVG}text"):
        assert 0 < float(element.get("x")) < width
        assert 0 < float(element.get("y")) < height
    circles = figure.svg.count("a17 17")
    assert circles == 2 * dfa.num_states
    assert figure.svg.count("a13 13") == 2 * sum(dfa.accepting)


def test_bytes_in_few_characters():
    assert label_of(b"0123456789") == "0-9"
    assert label_of(b"ab") == "a-b"
    assert label_of(b" \n") == "\\n space"
    assert label_of([0xC3]) == "xC3"
    assert label_of(b"acegi") == "a c ... i"


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="dfa must be one of at most 40 states, got '61 states'"):
        automaton(DFA("a{60}"))
    with pytest.raises(ValueError, match="path must be states below 2"):
        automaton(DFA("a+"), path=[0, 2])
    with pytest.raises(ValueError, match="strips must be at least one"):
        token_strips([], 10)
    with pytest.raises(ValueError, match="token ids below 10"):
        token_strips([TokenStrip("x", {3}, chosen=10)], 10)


def test_strips_light_the_allowed_tokens():
    strips = [TokenStrip("12", {0, 1, 2, 19, 20, 99}, 20, "mass 50 %"), TokenStrip("x", range(100))]
    figure = token_strips(strips, 100)
    assert str(figure).splitlines() == [
        "What may come next, of 100 tokens",
        "12  6 allowed, mass 50 %",
        "x   all allowed",
    ]
    classes = {"low": range(20), "single": {20}}
    table = token_strips(strips, 100, classes=classes)
    assert str(table).splitlines()[1:] == [
        "12  6 allowed, mass 50 %: low 4, single 1, other 1",
        "x   all allowed: low 20, single 1, other 79",
    ]
    tooltips = [e.text for e in ET.fromstring(table.svg).iter(f"{SVG}title")][1:]
    assert tooltips[:3] == ["low: 4 of 20", "single: 1 of 1", "other: 1 of 79"]
    fills = [e.get("fill") for e in ET.fromstring(table.svg).iter(f"{SVG}rect")]
    assert fills.count("#8cc3e6") == 1 + 4  # all of a class: in the legend, one above, three below
    framed = [e for e in ET.fromstring(table.svg).iter(f"{SVG}rect") if e.get("fill") == "none"]
    assert len(framed) == 2  # the class of the token that came, and in the legend
