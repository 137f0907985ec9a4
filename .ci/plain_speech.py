"""Count what makes code hard to read aloud: arguments in a bundle, several things in one line.

    python .ci/plain_speech.py          # a table: how often, and how often per 1,000 lines
    python .ci/plain_speech.py -v       # and each place

The counts are per shelf of the package; ``tests/docs/test_plain_speech.py`` holds the bounds.

* A *starred tuple* is packed in a function and unpacked into a call of the same function:
  ``rest = a, b, c; f(*rest)`` or ``f(*(a, b, c))``. The arguments have lost their names.
* A *multiple assignment* gives several things values in one line: ``a, b = x, y``,
  ``a = b = 0`` or ``a = x; b = y``. To take one value apart, ``a, b = f()``, is none.
* A *long call* has six or more arguments by position.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import shelves
from shelves import PACKAGE

SHELVES = [shelf for shelf in shelves.BOUNDS if shelf != "evening"]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def files_of(shelf: str) -> list[Path]:
    """Files of a shelf."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if shelves.shelf_of(path) == shelf]


def num_lines(paths: list[Path]) -> int:
    """Lines of the files: code, comments and empty ones."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


# -- starred tuples --------------------------------------------------------------------------------


def starred_tuples(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls with a bundle of arguments that was packed in the same function."""
    found = {}
    for function in ast.walk(tree):
        if not isinstance(function, _FUNCTIONS):
            continue
        packed: set[str] = set()
        for node in ast.walk(function):
            packed |= {name for name, value in _named(node) if _is_packed(value, packed)}
        for call in ast.walk(function):
            if isinstance(call, ast.Call):
                bundles = [arg.value for arg in call.args if isinstance(arg, ast.Starred)]
                if any(_is_packed(bundle, packed) for bundle in bundles):
                    found[id(call)] = call
    yield from found.values()


def _named(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names that a statement gives a value, with it; also those in ``a, b = (x, y), z``."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        pairs = [(node.target, node.value)]
    for target, value in pairs:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            each = zip(target.elts, value.elts, strict=False)
        else:
            each = zip([target], [value], strict=True)
        yield from ((name.id, part) for name, part in each if isinstance(name, ast.Name))


def _is_packed(value: ast.expr, packed: set[str]) -> bool:
    """True for a tuple or list of several that is written here, for its name, and for parts."""
    match value:
        case ast.Tuple() | ast.List():
            return len(value.elts) > 1
        case ast.Name():
            return value.id in packed
        case ast.Subscript(slice=ast.Slice()):
            return _is_packed(value.value, packed)
        case ast.IfExp():
            return _is_packed(value.body, packed) or _is_packed(value.orelse, packed)
        case ast.BinOp():
            return _is_packed(value.left, packed) or _is_packed(value.right, packed)
        case ast.Call(func=ast.Name(id="map" | "tuple" | "list" | "sorted")):
            return any(_is_packed(arg, packed) for arg in value.args)
        case ast.ListComp() | ast.GeneratorExp():
            return _is_packed(value.generators[0].iter, packed)
    return False


# -- multiple assignments, long calls --------------------------------------------------------------


def multiple_assignments(tree: ast.AST) -> Iterator[ast.stmt]:
    """Statements that give several things values, and those that begin in another one's line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            takes_several = any(isinstance(target, ast.Tuple) for target in node.targets)
            has_several = isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1
            if len(node.targets) > 1 or (takes_several and has_several):
                yield node
        for part in ("body", "orelse", "finalbody"):
            body = getattr(node, part, None)
            if isinstance(body, list):
                lines = [statement.lineno for statement in body]
                yield from (s for i, s in enumerate(body) if s.lineno in lines[:i])


def of_long_methods(tree: ast.AST) -> Iterator[ast.stmt]:
    """Multiple assignments in functions of more than ten lines, each once."""
    found = {}
    for function in ast.walk(tree):
        if isinstance(function, _FUNCTIONS) and function.end_lineno - function.lineno >= 10:
            found |= {id(node): node for node in multiple_assignments(function)}
    yield from found.values()


def long_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls with six or more arguments by position; a starred one counts once."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) >= 6:
            yield node


# -- counts ----------------------------------------------------------------------------------------

Count = Callable[[ast.AST], Iterator[ast.stmt] | Iterator[ast.Call]]
KINDS: dict[str, Count] = {
    "starred tuples": starred_tuples,
    "multiple assignments": multiple_assignments,
    "long calls": long_calls,
}


@dataclass(frozen=True)
class Place:
    """A line of the package."""

    path: Path
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(PACKAGE)}:{self.line}: {self.code}"


def places(paths: list[Path], count: Count) -> list[Place]:
    """Places of one kind in the files, in order."""
    found = []
    for path in paths:
        text, tree = _read(path)
        code = text.splitlines()
        lines = sorted(node.lineno for node in count(tree))
        found += [Place(path, line, code[line - 1].strip()) for line in lines]
    return found


@cache
def _read(path: Path) -> tuple[str, ast.Module]:
    text = path.read_text(encoding="utf-8")
    return text, ast.parse(text)


def main() -> None:
    """Print the table."""
    print(f"{'':16}{'lines':>8}" + "".join(f"{kind:>24}" for kind in KINDS))
    for shelf in ["evening", *SHELVES]:
        paths = shelves.evening_files() if shelf == "evening" else files_of(shelf)
        lines = num_lines(paths)
        found = [places(paths, count) for count in KINDS.values()]
        told = [f"{len(each)} ({1000 * len(each) / lines:.1f})" for each in found]
        print(f"{shelf:16}{lines:8,}" + "".join(f"{each:>24}" for each in told))
        if "-v" in sys.argv:
            print(*(f"  {place}" for each in found for place in each), sep="\n")


if __name__ == "__main__":
    main()
