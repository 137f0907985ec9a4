"""The house rules: who imports whom, what needs torch, what the README promises about reading."""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from importlib import import_module
from pathlib import Path

import pytest

from minivllm.course.asking.texts import read_toml

PACKAGE = Path(__file__).parents[2] / "minivllm"

# A room imports only from rooms above it in this list (and from itself): no arrow points upward.
# Models come before requests: they know nothing of one, though a request may name an adapter.
ROOMS = [
    "version", "utils", "envs", "logger", "pooling_params", "config", "sampling_params", "metrics",
    "trace", "multimodal", "distributed", "attention", "embedded", "models", "pooling",
    "quantization", "lora", "outputs", "request_protocols", "request", "kv", "kv_transfer",
    "spec_decode",
    "scheduling", "structured_output", "sampling",
    "cpu", "worker", "executor", "engine",
    "lab/translation", "lab", "lab/contiguous", "lab/sim", "lab/viz", "entrypoints", "deploy",
    "lab/bench", "lab/training", "lab/quantize", "xray",
    "course/asking", "course/grading", "course/ch", "course", "course/classroom",
    "course/playground", "cli", "sim", "viz", "exercises", "__main__",
]  # fmt: skip
HOUSES = {"lab", "course"}
ENGINE = ROOMS[: ROOMS.index("lab/translation")]
WITH_NUMPY = {"structured_output"}  # its masks are arrays, though no tensors
NEED_TORCH = {"attention", "models", "pooling", "quantization", "sampling", "lora", "cpu",
              "worker", "executor", "engine", "entrypoints",
              "lab/bench", "lab/quantize", "lab/training", "cli", "__main__"}  # fmt: skip
NEED_TORCH_FILES = {
    "utils/tensors.py", "utils/platforms.py", "kv_transfer/layer_files.py", "distributed/group.py",
    "xray/file_run.py", "distributed/in_process.py", "lab/oracle.py",
    "distributed/torch_group.py", "distributed/shm_group.py", "distributed/recorded.py",
    "course/grading/oracle_check.py",  # for grading
    "course/ch10/kernel_harness.py", "course/ch10/kernel_ladder.py",
    "course/ch10/kernel_memory.py", "course/ch10/kernel_runs.py", "course/ch10/copy_runs.py",
    "course/ch10/row_runs.py", "course/ch10/decode_runs.py", "course/ch10/attention_mistakes.py",
}  # fmt: skip
NEED_VLLM_FILES = {"xray/tracer.py", "xray/policy.py"}  # vLLM loads them


def room_of_parts(parts: tuple[str, ...]) -> str:
    """``lab`` and ``course`` are houses: their rooms are ``lab/sim`` and so on.

    All chapters are one room, ``course/ch``.
    """
    if parts[0] == "course" and parts[1:] and re.match(r"ch(\d\d|A\d)", parts[1]):
        return "course/ch"
    inner = "/".join(parts[:2])
    of_its_own = parts[0] in HOUSES and (PACKAGE / inner).is_dir()
    return inner if of_its_own else parts[0]


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return room_of_parts(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """The rooms that a file names in an import, at its top or inside a function."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        inside = [n.split(".")[1:] for n in names if n.startswith("minivllm.")]
        rooms |= {room_of_parts(tuple(parts)) for parts in inside}
    return rooms


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def test_the_list_has_each_room_once():
    assert sorted(ROOMS) == sorted({room_of(path) for path in FILES})


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_from_rooms_above_it(path):
    room = room_of(path)
    assert room in ROOMS, f"{room} is not in the list of rooms"
    below = {r for r in imports_of(path) if ROOMS.index(r) > ROOMS.index(room)}
    assert not below, f"{path.relative_to(PACKAGE)} imports from below: {sorted(below)}"


@pytest.mark.parametrize("room", ENGINE)
def test_the_engine_never_imports_what_looks_at_it(room):
    beyond = {
        (p.name, r)
        for p in FILES
        if room_of(p) == room
        for r in imports_of(p)
        if r.split("/")[0] in HOUSES
    }
    assert not beyond


def test_the_engine_knows_only_where_the_embedded_model_is():
    """It never imports what makes the model's text: ``embedded/__init__`` and no more."""
    engine = [p for p in FILES if room_of(p) in ENGINE and room_of(p) != "embedded"]
    assert not [p for p in engine if "minivllm.embedded." in p.read_text(encoding="utf-8")]


@pytest.mark.parametrize("numpy", [False, True], ids=["without numpy", "with numpy"])
def test_the_rooms_that_run_without_torch(numpy):
    modules = [
        ".".join(("minivllm", *p.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for p in FILES
        if (room_of(p) in WITH_NUMPY) == numpy
        and room_of(p) not in NEED_TORCH
        and str(p.relative_to(PACKAGE)) not in NEED_TORCH_FILES | NEED_VLLM_FILES
    ]
    absent = ("torch", "transformers") if numpy else ("torch", "transformers", "numpy")
    code = (
        "import sys, importlib\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print([m for m in {absent!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_minivllm_is_light():
    code = "import minivllm, sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [m for m in json.loads(done.stdout) if m.startswith("minivllm")]
    assert loaded == ["minivllm", "minivllm.cpu", "minivllm.cpu.spin", "minivllm.version"]


def test_every_public_name_exists():
    import minivllm

    for name in minivllm.__all__:
        assert getattr(minivllm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        minivllm.Nonsense  # noqa: B018


def test_readers_import_the_lab_by_its_three_names():
    """``minivllm.sim``, ``.viz`` and ``.exercises``; of the lab itself only what needs torch."""
    root = PACKAGE.parent
    texts = [root / "README.md", *(root / "notebooks").rglob("*.md")]
    texts += sorted((root / "notebooks").glob("*.ipynb"))
    found = {
        (path.name, module)
        for path in texts
        for module in re.findall(r"minivllm\.(?:lab|course)\.\w+", path.read_text(encoding="utf-8"))
    }
    needs_torch = ("bench", "quantize", "training", "oracle")
    allowed = {f"minivllm.lab.{name}" for name in needs_torch}
    assert not {(name, module) for name, module in found if module not in allowed}


@pytest.mark.parametrize("name", ["sim", "viz", "exercises"])
def test_a_name_of_the_lab_is_a_plain_list_of_names(name):
    module = import_module(f"minivllm.{name}")
    assert module.__name__ == f"minivllm.{name}"
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(hasattr(module, each) for each in module.__all__)
    chapters = {path.parent.name for path in (PACKAGE / "course").glob("ch*/exercises.py")}
    assert name != "exercises" or chapters <= set(module.__all__)


def code_lines(path: Path, first: int = 1, last: int | None = None) -> int:
    """Lines that hold code, of those from first to last: no blanks, comments, docstrings."""
    text = path.read_text()
    docstring_lines = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docstring_lines |= set(range(value.lineno, value.end_lineno + 1))
    return sum(
        1
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#") and number not in docstring_lines
        if first <= number and (last is None or number <= last)
    )


def test_the_scheduler_fits_on_a_screen():
    """Two phases, continue, admit, add: one after the other, and short."""
    path = PACKAGE / "scheduling/scheduler.py"
    (scheduler,) = (n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef))
    methods = [node for node in scheduler.body if isinstance(node, ast.FunctionDef)]
    names = [method.name for method in methods]
    first = names.index("schedule")
    on_screen = ["schedule", "_continue_running", "_admit_waiting", "_admit", "_add_to_output"]
    assert names[first : first + len(on_screen)] == on_screen
    begin, end = methods[first].lineno, methods[first + len(on_screen)].lineno
    assert code_lines(path, begin, end) <= 76
    assert len(path.read_text().splitlines()) <= 450


def test_the_path_can_be_read_in_an_evening():
    readme = (PACKAGE.parent / "README.md").read_text()
    section = readme.split("## Read it in an evening")[1].split("\n## ")[0]
    files = re.findall(r"^\d+\. \[`([\w/]+\.py)`\]\(minivllm/\1\)", section, re.MULTILINE)
    assert 5 <= len(files) <= 12
    lines = sum(code_lines(PACKAGE / file) for file in files)
    promised = int(re.search(r"under ([\d,]+) lines of code", section)[1].replace(",", ""))
    assert promised <= 1430
    assert promised - 100 <= lines < promised, f"the README should round up {lines:,} lines"


FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def assigned(node: ast.AST) -> list[ast.expr]:
    """Single targets of an assignment; of other nodes none."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return []
    return [each for t in targets for each in (t.elts if isinstance(t, ast.Tuple) else [t])]


def is_of_self(target: ast.AST) -> bool:
    return isinstance(target, ast.Attribute) and ast.unparse(target.value) in ("self", "cls")


def methods_of(cls: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """Methods of a class and of its bases, without properties; torch's modules have forward."""
    methods = {
        node.name
        for node in cls.body
        if isinstance(node, FUNCTION)
        and not any(re.search("property|setter", ast.unparse(d)) for d in node.decorator_list)
    }
    for base in map(ast.unparse, cls.bases):
        methods |= methods_of(classes[base], classes) if base in classes else set()
    return methods | ({"forward"} if "nn." in ast.unparse(cls) else set())


def patches_in(trees: dict[str, ast.Module]) -> list[str]:
    """Assignments that replace a function or method of an object, a class or a module.

    A name that some class has as an attribute may be assigned to. So may ``__init__``, by the
    decorator of a class.
    """
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in nodes if isinstance(node, FUNCTION)} | {"forward"}
    fields = {target.attr for node in nodes for target in assigned(node) if is_of_self(target)}
    for cls in classes.values():
        fields |= {ast.unparse(target) for node in cls.body for target in assigned(node)}
        fields -= methods_of(cls, classes) & {"forward"}
    found = []
    for file, tree in trees.items():
        for cls in [None, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]:
            own = methods_of(cls, classes) if cls else functions - fields - {"__init__"}
            found += [
                f"{file}:{target.lineno}: {ast.unparse(target)}"
                for node in ast.walk(cls or tree)
                for target in assigned(node)
                if isinstance(target, ast.Attribute) and target.attr in own
                if cls is None or is_of_self(target)
            ]
    return sorted(set(found))


WITH_MODULES = {"distributed", "attention", "models", "pooling", "quantization", "sampling", "lora",
                "cpu", "worker", "executor"}  # fmt: skip


def test_the_engine_replaces_no_method():
    """``quant_method`` says how a layer computes, ``group`` with whom: a patch never does.

    Where there are torch's modules, ``setattr`` is not called, either: its names are not seen.
    """
    trees = {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
        for path in FILES
        if room_of(path) in ENGINE
    }
    assert patches_in(trees) == []
    calls = [
        f"{file}:{node.lineno}: {ast.unparse(node)}"
        for file, tree in trees.items()
        if file.split("/")[0] in WITH_MODULES
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and re.search(r"\bsetattr$|MethodType$", ast.unparse(node.func))
    ]
    assert calls == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def apply(model): model.forward = faster", 1),
        ("def apply(model): model.run = faster", 1),
        ("class Linear(nn.Module):\n  def sum(self): self.forward = self.run", 1),
        ("class Stage(Model):\n  def take(self): self.x, self.run = 1, None", 1),
        ("def apply(model): model.group = group", 0),
        ("class Other:\n  run = None\ndef apply(other): other.run = faster", 0),
    ],
)
def test_a_patch_is_found(code, found):
    model = "class Model:\n  def run(self): self.group = 1\n"
    assert len(patches_in({"a.py": ast.parse(model + code)})) == found


def docstrings(tree: ast.Module) -> list[ast.Constant]:
    """Docstrings of a module, its classes and its functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, kinds)]
    values = [b[0].value for b in bodies if b and isinstance(b[0], ast.Expr)]
    return [v for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]


RIDDLE = re.compile(
    r"(?:What|Who|Whoever|Whose|Whom|Nobody|Somebody|Anybody|Everybody|Of|As|How|Where|When"
    r"|Whether|If)\b(?!.*\?$)"  # a question is an exercise
)


def test_a_docstring_begins_with_its_object_or_an_imperative():
    """First lines such as "Number of ...", "True if ...", "Return ..."."""
    found = [
        f"{path}:{docstring.lineno}: {first}"
        for path in sorted([*PACKAGE.rglob("*.py"), *Path(__file__).parents[1].rglob("*.py")])
        for docstring in docstrings(ast.parse(path.read_text()))
        for first in docstring.value.strip().splitlines()[:1]
        if RIDDLE.match(first)
    ]
    assert not found, "\n".join(found)


VAGUE = re.compile(
    r"\b(?:whoever|somebody|so\s+many|what\s+there\s+is|in\s+vain|nobody)\b", re.IGNORECASE
)
# What a reader is asked and told: no pictures for a place in the batch, a lock or a check, either.
PICTURES = re.compile(
    VAGUE.pattern + r"|\b(?:seats?|books|doors?|diary|stands?(?!\s+for\b)|lies?|roof)\b",
    re.IGNORECASE,
)
# Their text cells still have such words. The list may only shrink.
WITH_PICTURES = {
    "07",
}


def test_pages_speak_plainly():
    """The guide, the teacher's pages, and what a browser runs or a report prints."""
    pages = [
        *PACKAGE.parent.glob("notebooks/**/*.md"),
        *PACKAGE.parent.glob(".github/*.md"),
        PACKAGE.parent / "README.md",
    ]
    scripts = [path for ending in ("js", "html", "toml") for path in PACKAGE.rglob(f"*.{ending}")]
    written = [path for path in scripts if "data" not in path.parts]  # not the model's own texts
    vague = re.compile(r"\b(?:whoever|somebody|nobody|in\s+vain|so\s+many\s+of)\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(PACKAGE.parent)}: {line.strip()}"
        for path in sorted([*pages, *written])
        for line in path.read_text(encoding="utf-8").splitlines()
        if vague.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_package_speaks_plainly():
    """Comments and docstrings everywhere; other strings, too, except for exercises and figures."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        strings = docstrings(tree)
        if path.relative_to(PACKAGE).parts[0] not in {"lab", "embedded"}:
            strings = [n for n in ast.walk(tree) if isinstance(n, ast.Constant)]
        words = [(n.lineno, n.value) for n in strings if isinstance(n.value, str)]
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        words += [(t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT]
        found += [f"{path}:{line}: {m[0]}" for line, w in words for m in VAGUE.finditer(w)]
    assert not found, "\n".join(found)


def texts_of(entry) -> list[str]:
    """Every string in a value of a TOML file."""
    if not isinstance(entry, (dict, list)):
        return [entry] if isinstance(entry, str) else []
    entries = entry.values() if isinstance(entry, dict) else entry
    return [text for each in entries for text in texts_of(each)]


def test_the_exercises_speak_plainly():
    """Questions, hints, verdicts and stubs; the quiz and the reasoning, which are in TOML."""
    found, course = [], PACKAGE / "course"
    for path in sorted(course.rglob("*.py")):
        tree = ast.parse(path.read_text())
        texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
        found += [f"{path}: {m[0]}" for t in texts for m in PICTURES.finditer(str(t))]
    for path in sorted(course.rglob("*.toml")):
        texts = texts_of(read_toml(path.relative_to(course)))
        found += [f"{path}: {m[0]}" for text in texts for m in PICTURES.finditer(text)]
    assert not found, "\n".join(found)


def test_the_notebooks_speak_plainly():
    """Their text cells; a notebook that has lost its last picture leaves the list."""
    found = {
        path.name.partition("_")[0]
        for path in (PACKAGE.parent / "notebooks").glob("*.ipynb")
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "markdown" and PICTURES.search("".join(cell["source"]))
    }
    assert found == WITH_PICTURES


def folders() -> set[str]:
    """The package's folders; one that only a cache is left of does not count."""
    files = (p for p in PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    parts = (p.relative_to(PACKAGE).parts for p in files)
    return {first for first, *rest in parts if rest}


def test_the_readmes_tree_has_a_line_for_each_folder():
    readme = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    tree = readme.split("\nminivllm/\n")[1].split("\n```")[0].splitlines()
    named = [re.match(r"  (\w+)/ +\S", line)[1] for line in tree]
    assert len(set(named)) == len(named)
    assert set(named) == folders()


def test_the_table_of_the_house_has_a_row_for_each_folder():
    page = (PACKAGE.parent / "notebooks/guide/house.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|.*\| (.+) \|$", page, re.MULTILINE)
    named = [path for names, _ in rows for path in re.findall(r"`([\w/]+)/`", names)]
    assert len(set(named)) == len(named)
    assert all(any(PACKAGE.glob(path.replace("NN", "*"))) for path in named)
    assert {path.split("/")[0] for path in named} == folders()
    for house in ("lab", "course"):
        rooms = {p.parent.name for p in (PACKAGE / house).glob("*/__init__.py")}
        rooms = {re.sub(r"^ch(\d\d|A\d)b?$", "chNN", room) for room in rooms}
        assert {path.split("/")[1] for path in named if path.startswith(f"{house}/")} == rooms


THEY_OPEN_BYTES = ("Image", "tarfile", "webbrowser", "gzip", "zipfile", "os", "archive")


def reads_or_writes_text(call: ast.AST) -> bool:
    """True for ``read_text``, ``write_text``, and an ``open`` in another mode than bytes'."""
    if not isinstance(call, ast.Call):
        return False
    name = getattr(call.func, "attr", getattr(call.func, "id", None))
    if name in ("read_text", "write_text"):
        return len(call.args) < 1 + (name == "write_text")
    if name != "open" or getattr(getattr(call.func, "value", None), "id", "") in THEY_OPEN_BYTES:
        return False
    return "b" not in "".join(ast.unparse(arg) for arg in call.args[-1:])


def test_a_text_file_is_utf_8_whatever_the_locale_says():
    """Each call that reads or writes text says which encoding it means."""
    found = [
        f"{path}: {ast.unparse(call)}"
        for path in FILES
        for call in filter(reads_or_writes_text, ast.walk(ast.parse(path.read_text("utf-8"))))
        if "encoding" not in [keyword.arg for keyword in call.keywords]
    ]
    assert not found, "\n".join(found)


def test_a_folder_of_tests_runs_alone():
    """Its files import helpers that are beside them, or in ``tests/`` itself."""
    tests = PACKAGE.parent / "tests"
    folders_of: dict[str, set[str]] = {}
    for path in tests.rglob("*.py"):
        folders_of.setdefault(path.stem, set()).add(path.parent.name)
    found = []
    for path in sorted(tests.glob("*/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                folders = folders_of.get(name, {"tests"})
                if not folders & {"tests", path.parent.name}:
                    found.append(f"{path.parent.name}/{path.name} imports {name} of {folders}")
    assert not found
