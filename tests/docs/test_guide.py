"""The guide: what its pages say of our code and of vLLM is there, and nothing is missing."""

import ast
import importlib.util
import re
import sys

import pytest
import vllm_names as vllm

GUIDE = vllm.ROOT / "notebooks" / "guide"
PACKAGE = vllm.ROOT / "minivllm"
# What looks at the engine is no part of the map, nor are aliases and what trains the model.
OUTSIDE = ("lab/", "course/", "embedded/", "deploy/")
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
        if file != "trace/records.py":  # one class a record
            missing = classes_of(file) - names
            assert not missing, f"notebooks/guide/vllm-map.md: {file} also has {missing}"


def left_out(cell: str) -> set[str]:
    """Items that a cell leaves out, each as a file would be called: ``structured_outputs``.

    "LoRA adapters" and "speculative settings" are LoRA and speculative.
    """
    items = re.split(r"[,;:] | and ", re.sub(r"`[^`]*`", "", cell).lower())
    words = [[w for w in re.findall(r"[a-z0-9]+", i) if w not in GENERAL] for i in items]
    return {"_".join(item) for item in words if item}


GENERAL = {"settings", "adapters"}


@pytest.mark.parametrize("row", MAP, ids=lambda row: row[0].split("`")[1])
def test_nothing_is_left_out_that_has_a_file_of_ours(row):
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    paths = [p for p in paths if not p.as_posix().startswith((*OUTSIDE, "xray/"))]
    ours = {name for path in paths for name in (*path.parent.parts, path.stem)}
    ours |= {f"{name}s" for name in ours} | {name.removesuffix("s") for name in ours}
    found = left_out(row[3]) & ours if len(row) > 3 else set()
    assert not found, f"{row[0]} leaves out {found}, of which there is a file"


def test_a_word_that_is_left_out_is_found():
    cell = (
        "compilation, LoRA, speculative and multimodal settings; `v1/core/x.py`, Structured outputs"
    )
    found = {"compilation", "lora", "speculative", "multimodal", "structured_outputs"}
    assert left_out(cell) == found
    assert left_out("LoRA adapters") == {"lora"}


# -- glossary ------------------------------------------------------------------------------------

# Keys and arguments, which the list of names leaves out.
KEYS = {"prompt_token_ids", "slot_mapping", "query_start_loc", "chat_template", "cache_salt"}


def test_a_term_has_its_notebook_its_names_and_its_chinese():
    numbers = {path.name.split("_")[0] for path in (vllm.ROOT / "notebooks").glob("*.ipynb")}
    terms = rows("glossary.md")
    assert len({row[0] for row in terms}) == len(terms)
    for term, line, notebook, old, new, chinese in terms:
        assert notebook in numbers, term
        assert len(line.split()) <= 20, term
        assert re.search(r"[一-鿿]", chinese), term
        for version, cell in ((vllm.OLD, old), (vllm.NEW, new)):
            names = re.findall(r"`([\w.]+)`", cell)
            assert cell == "-" or len(names) == 1, term
            assert set(names) <= vllm.known(version) | KEYS, f"{term}: {version} has no {names}"


def load_check_terms():
    spec = importlib.util.spec_from_file_location("check_terms", GUIDE / "check_terms.py")
    module = sys.modules["check_terms"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_no_term_is_used_before_it_is_explained():
    assert not load_check_terms().findings()


def test_what_explains_a_term_and_what_uses_it():
    check_terms = load_check_terms()
    cells = [
        (check_terms.Place("01", 1), "Prefix-caching is for later, as are block tables."),
        (check_terms.Place("08", 0), "# 08 · Prefix caching"),
        (check_terms.Place("08", 2), "A **block table** translates. `top_p=0.9` is a number."),
    ]
    assert check_terms.explanation("prefix caching", "08", cells) == 1
    assert check_terms.explanation("block table", "08", cells) == 2
    assert check_terms.explanation("block table", "01", cells) is None
    assert check_terms.explanation("top_p", "08", cells) == 2
    assert re.search(check_terms.pattern("prefix caching"), cells[0][1], re.IGNORECASE)
    assert not re.search(check_terms.pattern("table"), "stable tablet", re.IGNORECASE)
