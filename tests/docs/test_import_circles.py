"""The package has no circles of imports: neither of files nor of folders.

All imports count: at the top of a module, inside functions, and those for type checkers alone.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "minivllm"
HOUSES = ("lab",)  # its folders are rooms of their own, between those of the engine


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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


def part_of(module: str, folder: tuple[str, ...]) -> str | None:
    """The file or folder of a folder that has the module: seen from there, it is one thing.

    Seen from the package, a house's folders are parts, each by itself. None: it is elsewhere.
    """
    parts = module.split(".")[1:]
    if tuple(parts[: len(folder)]) != folder:
        return None
    inside = parts[len(folder) :] or ["__init__"]
    depth = 2 if not folder and inside[0] in HOUSES else 1
    return "/".join([*folder, *inside[:depth]])


def folder_graph(graph: dict[str, set[str]], folder: tuple[str, ...]) -> dict[str, set[str]]:
    """For each part of a folder the parts of the same folder that it imports from."""
    parts: dict[str, set[str]] = {}
    for module, imported in graph.items():
        part = part_of(module, folder)
        if part is not None:
            others = {part_of(other, folder) for other in imported}
            parts.setdefault(part, set()).update(others - {part, None})
    return parts


def circle(graph: dict[str, set[str]]) -> str:
    """A circle in words, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " is imported by ".join(error.args[1])
    return ""


def circles_of_folders(package: Path) -> list[str]:
    """A circle between the parts of each folder that has one, of the package's, too."""
    graph = import_graph(package)
    paths = [path.relative_to(package).parent.parts for path in modules_of(package).values()]
    folders = {parts[:depth] for parts in paths for depth in range(len(parts) + 1)}
    return [found for each in sorted(folders) if (found := circle(folder_graph(graph, each)))]


def test_no_files_import_each_other():
    assert not circle(import_graph(PACKAGE))


def test_no_folders_import_each_other():
    """In each folder, its files and its sub-folders, each as a whole, have an order."""
    assert not circles_of_folders(PACKAGE)


def test_a_circle_is_found(tmp_path):
    """Two folders whose files have none; then two files. One import is inside a function."""
    files = {
        "high/top.py": "from package.low import base\n",
        "low/base.py": "import package.version\n",
        "low/more.py": "def f():\n    from ..high import top\n",
        "version.py": "",
    }
    for name, text in files.items():
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert not circle(import_graph(tmp_path / "package"))
    (found,) = circles_of_folders(tmp_path / "package")
    assert sorted(set(found.split(" is imported by "))) == ["high", "low"]
    (tmp_path / "package/version.py").write_text("from .low.base import name\n")
    found = circle(import_graph(tmp_path / "package"))
    assert set(found.split(" is imported by ")) == {"package.low.base", "package.version"}
