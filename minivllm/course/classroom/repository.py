"""new_repository: the capstone as a repository of its own, with stubs, tests and a CI file."""

from __future__ import annotations

from pathlib import Path

from minivllm.course import labs
from minivllm.course.grading.stubs import stub_source
from minivllm.utils.validation import check

TEMPLATE = Path(__file__).parent / "template"
STUBS = {
    "pool.py": labs.allocate_slots,
    "table.py": labs.copy_on_write,
    "plan.py": labs.schedule,
    "cache.py": labs.find_longest_cache_hit,
    "kernel.py": labs.online_softmax,
}
# The other files, and the template of each.
FILES = {
    "README.md": "README.md",
    "requirements.txt": "requirements.txt",
    "scoreboard.py": "scoreboard.py.txt",
    "conftest.py": "conftest.py.txt",
    "tests/test_engine.py": "test_engine.py.txt",
    ".github/workflows/labs.yml": "workflow.yml",
}


def new_repository(directory: Path, requirement: str = "minivllm") -> list[str]:
    """Write the repository "my engine". Returns the files, relative to the directory.

    Args:
        directory: is made; may exist if it is empty, or has a ``.git`` alone.
        requirement: how pip finds minivllm, as a line of requirements.txt.

    Raises:
        ValueError: if there is something in the directory.
    """
    is_free = not directory.exists() or (
        directory.is_dir() and {path.name for path in directory.iterdir()} <= {".git"}
    )
    check(is_free, "directory", str(directory), "a new or an empty directory")
    texts = {name: (TEMPLATE / file).read_text(encoding="utf-8") for name, file in FILES.items()}
    texts["requirements.txt"] = texts["requirements.txt"].replace("REQUIREMENT", requirement)
    for name, lab in STUBS.items():
        text = (TEMPLATE / f"{name}.txt").read_text(encoding="utf-8")
        texts[name] = text.replace("STUB\n", stub_source(lab.stub))
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
    return sorted(texts)
