"""Plain speech: arguments keep their names, and a line assigns one thing.

``.ci/plain_speech.py`` counts, and prints each place with ``-v``.
"""

import ast

import plain_speech as speech
import pytest
import shelves

# Per 1,000 lines. A pair that belongs together may share a line; where an order is known to all,
# as that of a kernel's pointers, it needs no names.
MOST = {"starred tuples": 0, "multiple assignments": 5, "long calls": 0.8}


def told(places) -> str:
    return "\n".join(map(str, places))


@pytest.mark.parametrize("kind", speech.KINDS)
@pytest.mark.parametrize("shelf", speech.SHELVES)
def test_a_shelf_speaks_plainly(shelf, kind):
    paths = speech.files_of(shelf)
    found = speech.places(paths, speech.KINDS[kind])
    most = int(MOST[kind] * speech.num_lines(paths) / 1000)
    assert len(found) <= most, f"{len(found)} {kind}, at most {most}:\n{told(found)}"


def test_the_long_methods_of_the_evening_assign_one_thing_a_line():
    assert len(shelves.evening_files()) > 5
    found = speech.places(shelves.evening_files(), speech.of_long_methods)
    assert not found, told(found)


def test_each_file_is_on_one_shelf():
    shelved = [path for shelf in speech.SHELVES for path in speech.files_of(shelf)]
    assert sorted(shelved) == sorted(speech.PACKAGE.rglob("*.py"))
    assert all(speech.files_of(shelf) for shelf in speech.SHELVES)


def lines_of(count, body: str) -> list[int]:
    """Lines of a function with this body, which begins in line 1, that are counted."""
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    return sorted(node.lineno - 1 for node in count(ast.parse(f"def f():\n{indented}")))


@pytest.mark.parametrize(
    "body",
    [
        "rest = a, b\ng(*rest)",
        "rest: tuple = (a, b)\ng(*rest)",
        "g(1,\n*(a, b))",
        "x, rest = 1, (a, b)\ng(*rest)",
        "rest = (a, b) if c else (a,)\ng(*rest)",
        "rest = a, b, c\ng(*rest[:2])",
        "rest = map(str, (a, b))\ng(*rest)",
        "rest = [h(x) for x in (a, b)]\ng(*rest)",
        "rest = a, b\nlambda: g(*rest)",
    ],
)
def test_a_starred_tuple_is_found(body):
    (line,) = lines_of(speech.starred_tuples, body)
    assert "g(" in body.splitlines()[line - 1]


@pytest.mark.parametrize(
    "body",
    ["rest = h()\ng(*rest)", "for rest in h():\n    g(*rest)", "g(*h.rest)", "rest = a, b\ng(rest)",
     "rest = [h(x) for x in h()]\ng(*rest)", "g((a, b))"],
)  # fmt: skip
def test_what_was_packed_elsewhere_is_no_starred_tuple(body):
    assert lines_of(speech.starred_tuples, body) == []


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("a, b = 1, 2", [1]),
        ("a = b = 0", [1]),
        ("a.x, a[0] = c, d", [1]),
        ("a = 1; b = 2; c = 3", [1, 1]),
        ("if c:\n    pass\nelse:\n    a, b = b, a", [4]),
        ("a, b = g()", []),
        ("a, b = c", []),
        ("a = 1, 2", []),
        ("a = 1\nb = 2", []),
        ("for a, b in c:\n    pass", []),
    ],
)
def test_multiple_assignments_are_counted(body, lines):
    assert lines_of(speech.multiple_assignments, body) == lines


@pytest.mark.parametrize(("num_lines", "found"), [(8, []), (9, [9])])
def test_a_long_method_has_more_than_ten_lines(num_lines, found):
    body = "\n".join(["pass"] * (num_lines - 1) + ["a, b = 1, 2"] + ["pass"])
    assert lines_of(speech.of_long_methods, body) == found


@pytest.mark.parametrize(
    ("call", "found"),
    [("g(1, 2, 3, 4, 5, 6)", [1]), ("g(1, 2, 3, 4, 5, x=6)", []), ("g(1, 2, 3, 4, 5, *x)", [1])],
)
def test_a_long_call_has_six_arguments_by_position(call, found):
    assert lines_of(speech.long_calls, call) == found
