"""The import graph of the package has no circles.

All imports count: at the top of a module, inside functions, and those for type checkers alone.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "minivllm"


def modules_of(package: Path) -> dict[str, Path]:
    """Files by module name."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts).removesuffix(".__init__")] = path
    return modules


def import_graph(package: Path) -> dict[str, set[str]]:
    """For each module the modules that it imports, or whose names it imports."""
    modules = modules_of(package)
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                parent = node.module or ""
                if node.level:
                    base = module.split(".") + ["__init__"] * (path.name == "__init__.py")
                    parent = ".".join([*base[: -node.level], *parent.split(".")]).strip(".")
                for alias in node.names:
                    inner = f"{parent}.{alias.name}"
                    names.add(inner if inner in modules else parent)
        graph[module] = names & modules.keys()
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components with more than one module (Tarjan's algorithm).

    A module that imports itself is one, too.
    """
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], index[other])
        if lowest[module] == index[module]:
            start = stack.index(module)
            component = stack[start:]
            del stack[start:]
            if len(component) > 1 or module in graph[module]:
                found.append(sorted(component))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def test_no_import_closes_a_circle():
    found = circles(import_graph(PACKAGE))
    assert not found, "circles of imports: " + "; ".join(" <-> ".join(circle) for circle in found)


@pytest.mark.parametrize(
    "text",
    [
        "from package import one",
        "from package.one import name",
        "import package.one",
        "from . import one",
        "from .one import name",
        "def f():\n    from package.one import name",
        "if TYPE_CHECKING:\n    from package.one import name",
    ],
)
def test_a_circle_is_found(tmp_path, text):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("import package.two\n")
    (package / "two.py").write_text("from package import three\n")
    (package / "three.py").write_text(text)
    assert circles(import_graph(package)) == [["package.one", "package.three", "package.two"]]
