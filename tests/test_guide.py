"""The guide: what its pages say of our code and of vLLM is there, and nothing is missing."""

import ast
import re

import pytest
import vllm_names as vllm

GUIDE = vllm.ROOT / "notebooks" / "guide"
PACKAGE = vllm.ROOT / "minivllm"
# What looks at the engine is no part of the map, nor are aliases and what trains the model.
OUTSIDE = ("lab/", "models/embedded/", "deploy/")
NO_ROOMS = {"__init__.py", "__main__.py", "version.py", "sim.py", "viz.py", "exercises.py"}


def rows(page: str) -> list[list[str]]:
    """The cells of every table row of a page, but for heads and rules."""
    text = (GUIDE / page).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("ours", "term") and set(row[0]) != {"-"}]


def entries(cell: str) -> list[tuple[list[str], list[str]]]:
    """``files: names; files: names`` as pairs of two lists."""
    found = []
    for part in cell.split(";"):
        files = re.findall(r"`([\w/]+(?:\.py|/))`", part)
        names = [n for n in re.findall(r"`([\w.]+)`", part) if not n.endswith(".py")]
        if files or names:
            found.append((files, names))
    return found


def classes_of(file: str) -> set[str]:
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    return {n.name for n in tree.body if isinstance(n, ast.ClassDef) and n.name[0] != "_"}


MAP = rows("vllm-map.md")


@pytest.mark.parametrize("row", MAP, ids=lambda row: row[0].split("`")[1])
def test_a_row_of_the_map_names_what_is_there(row):
    for files, names in entries(row[0]):
        there = set().union(*(classes_of(file) for file in files))
        assert set(names) <= there, f"{row[0]}: {set(names) - there} is not there"
    for version, cell in zip((vllm.OLD, vllm.NEW), row[1:3], strict=len(row) > 2):
        for files, names in entries(cell) if len(row) > 2 else []:
            there = set()
            for file in files:
                assert vllm.has_path(version, f"vllm/{file}"), f"{version} has no vllm/{file}"
                there |= vllm.names_in(vllm.FILES[version].get(f"vllm/{file}", {}))
            assert set(names) <= there, f"{version}, {files}: no {set(names) - there}"
    if len(row) > 3:
        for files, names in entries(row[3]):
            assert all(vllm.has_path(vllm.NEW, f"vllm/{file}") for file in files)
            assert set(names) <= vllm.known(vllm.NEW) | {"n"}


def test_the_map_has_every_file_and_class_of_ours():
    mapped = [entry for row in MAP for entry in entries(row[0])]
    files = {file for entry in mapped for file in entry[0]}
    names = {name for entry in mapped for name in entry[1]}
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if path.name in NO_ROOMS or file.startswith(OUTSIDE):
            continue
        assert file in files, f"notebooks/guide/vllm-map.md has no row for {file}"
        if file != "records.py":  # one class a record
            missing = classes_of(file) - names
            assert not missing, f"notebooks/guide/vllm-map.md: {file} also has {missing}"
