"""A cell of a notebook, run as on its page. What all of them print: docs/test_site.py."""

import sys

import pytest

from minivllm.course.playground.cells import Session


@pytest.fixture
def session(monkeypatch):
    """A session, after which the modules that it stands in for are there again."""
    for name in ("__main__", "IPython.display"):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name))
    return Session()


def test_streams_values_and_displays_are_outputs_in_their_order(session):
    source = (
        "import sys\nfrom IPython.display import display\nprint(1)\nprint(2)\n"
        "print('oh', file=sys.stderr)\ndisplay(3)\n[4]"
    )
    (first, second, third, fourth) = session.run(source, 0)["outputs"]
    assert first == {"output_type": "stream", "name": "stdout", "text": "1\n2\n"}
    assert (second["name"], second["text"]) == ("stderr", "oh\n")
    assert (third["output_type"], third["data"]) == ("display_data", {"text/plain": "3"})
    assert (fourth["output_type"], fourth["data"]) == ("execute_result", {"text/plain": "[4]"})


@pytest.mark.parametrize("source", ["", "# nothing", "x = 1", "None", "1;"])
def test_a_cell_may_show_nothing(session, source):
    assert session.run(source, 0) == {"outputs": []}


def test_names_stay_and_source_is_found(session):
    session.run("def f(x):\n    return x / 0", 3)
    (shown,) = session.run("import inspect\nprint(inspect.getsource(f))", 4)["outputs"]
    assert shown["text"].rstrip() == "def f(x):\n    return x / 0"
    reply = session.run("print('before')\n\nf(1)", 5)
    assert reply["outputs"][0]["text"] == "before\n"  # what came first is kept
    assert (reply["error"], reply["line"]) == ("ZeroDivisionError: division by zero", 3)


@pytest.mark.parametrize(
    ("source", "error", "line"),
    [
        ("x = 1\nx +", "SyntaxError: invalid syntax", 2),
        ("raise SystemExit", "SystemExit", 1),
        ("import sys\nsys.exit(3)", "SystemExit: 3", 2),
        ("int('a')", "ValueError: invalid literal", 1),
    ],
)
def test_an_error_is_said_with_its_line(session, source, error, line):
    reply = session.run(source, 0)
    assert reply["error"].startswith(error)
    assert reply["line"] == line


def test_a_value_is_shown_as_it_wants_to_be(session):
    source = (
        "class A:\n    def _repr_html_(self):\n        return '<b>a</b>'\n"
        "    def __repr__(self):\n        return 'a\\n'\nA()"
    )
    (output,) = session.run(source, 0)["outputs"]
    assert output["data"] == {"text/plain": "a", "text/html": "<b>a</b>"}
