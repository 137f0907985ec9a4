"""The extra that the README's line for students installs, and what the notebooks import."""

import ast
import re
import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import minivllm

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


# -- what is imported ------------------------------------------------------------------------------


ON_DEMAND = {"modelscope"}  # imported only where MINIVLLM_USE_MODELSCOPE is set


def goes_on_without(node: ast.AST) -> bool:
    """Return True for a ``try`` that handles an absent package and does not raise again."""
    return isinstance(node, ast.Try) and any(
        "ImportError" in ast.unparse(handler.type or handler)
        and not any(isinstance(inner, ast.Raise) for inner in ast.walk(handler))
        for handler in node.handlers
    )


def names_of(node: ast.AST):
    """Yield each name that is imported below a node, in full, but for optional ones."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.If) and "sys.version_info" in ast.unparse(node.test):
        holds = eval(ast.unparse(node.test), {"sys": sys})
        for child in node.body if holds else node.orelse:
            yield from names_of(child)
    elif not goes_on_without(node):
        for child in ast.iter_child_nodes(node):
            yield from names_of(child)


@lru_cache(None)
def names_in(path: Path) -> list[str]:
    """Return the names that a file of this project imports."""
    return list(names_of(ast.parse(path.read_text())))


@lru_cache(None)
def file_of(name: str) -> Path | None:
    """Return the file of this project that a name comes from; None if it is another package's."""
    parts = minivllm._HOME_OF.get(name.removeprefix("minivllm."), name).split(".")
    for base in (ROOT, ROOT / "notebooks"):
        for length in range(len(parts), 0, -1):
            path = base.joinpath(*parts[:length])
            for found in (path.with_suffix(".py"), path / "__init__.py"):
                if found.exists():
                    return found
    return None


def imported(trees) -> set[str]:
    """Return other projects' packages that are imported, directly or by files of this project."""
    todo = [name for tree in trees for name in names_of(tree)]
    packages, seen = set(), set()
    while todo:
        name = todo.pop()
        path = file_of(name)
        if path is None:
            packages.add(name.partition(".")[0])
        elif path not in seen:
            seen.add(path)
            todo += names_in(path)
    return packages - sys.stdlib_module_names - ON_DEMAND


def cells_of(path: Path):
    """Yield the code cells of a notebook, parsed, without the lines that are not Python."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            yield ast.parse(re.sub(r"(?m)^[%!].*$", "", cell.source))


# -- what is installed -----------------------------------------------------------------------------


def brought(extra: str) -> set[str]:
    """Return the distributions that an extra of this project installs, with what they require."""
    own = PROJECT["optional-dependencies"]
    todo = [Requirement(line) for line in (*PROJECT["dependencies"], *own[extra])]
    seen = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if (name, *sorted(requirement.extras)) in seen:
            continue
        seen.add((name, *sorted(requirement.extras)))
        if name == "minivllm":
            lines = [line for extra in requirement.extras for line in own[extra]]
        else:
            try:
                lines = requires(name) or []
            except PackageNotFoundError:  # of another platform, or of an optional part
                continue
        for needed in map(Requirement, lines):
            extras = requirement.extras or {""}
            if not needed.marker or any(needed.marker.evaluate({"extra": e}) for e in extras):
                todo.append(needed)
    return {name for name, *_ in seen}


@pytest.fixture(scope="module")
def extra():
    return brought("notebooks"), packages_distributions()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_extra_brings_what_a_notebook_imports(path, extra):
    installed, distributions = extra
    missing = {
        package
        for package in imported(cells_of(path))
        if not {canonicalize_name(name) for name in distributions.get(package, [package])}
        & installed
    }
    assert not missing, 'pip install -e ".[notebooks]" does not install them'


def test_every_night_the_readme_line_is_run_in_an_environment_of_its_own():
    """Only the extra is installed there, and every notebook is executed."""
    readme = (ROOT / "README.md").read_text()
    install = re.search(
        r"`(pip install .*?) && jupyter lab --notebook-dir=\. (notebooks/\S+)`", readme
    )
    assert install[1] == 'pip install -e ".[notebooks]"'
    assert (ROOT / install[2]).exists()
    nightly = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
    commands = [step.get("run", "") for step in nightly["jobs"]["student"]["steps"]]
    others = [c for c in commands if "pip install" in c and not c.startswith('pip install "torch')]
    assert others == [install[1]]
    assert commands[-1] == "python notebooks/execute.py"
