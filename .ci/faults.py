"""Faults in the engine, one at a time: ``python .ci/faults.py`` shows that each is seen.

A fault is a line of the engine that says something else, and the notebook or the test that must
notice; ``faults.toml`` is the list. ``python .ci/faults.py swap`` tries the faults whose name
contains that word.

* A notebook is run as always, strictly, with that line in place of the right one: at least one of
  its cells must print something else than it has stored. No file changes, so what a notebook lists
  of the source stays right.
* A test is run in a copy of the package and the tests that has the fault, since kernels are
  compiled from files: it must fail. All of these tests are first run in a copy without a fault.
"""

import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from tempfile import TemporaryDirectory

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Fault:
    """A line that is wrong, and the notebook or test that must notice.

    Args:
        file: where it stands, under ``minivllm/``.
        right: the line, or a part of it; there only once.
        wrong: what is to stand in its place.
        seen_by: a notebook's number, or a test: ``file`` or ``file::test``, without its folder.
    """

    file: str
    right: str
    wrong: str
    seen_by: str

    @property
    def module(self) -> str:
        return "minivllm." + self.file.removesuffix(".py").replace("/", ".")

    @property
    def is_for_a_notebook(self) -> bool:
        return not self.seen_by.startswith("test_")

    def put_into(self, source: str) -> str:
        """Return the module's source with the fault.

        Raises:
            ValueError: unless the right line is there, and only once.
        """
        times = source.count(self.right)
        if times != 1:
            raise ValueError(f"{self.file} says {self.right!r} {times} times, not once.")
        return source.replace(self.right, self.wrong)


FAULTS = {
    name: Fault(**fault) for name, fault in tomllib.loads(TABLE.read_text(encoding="utf-8")).items()
}


# -- a notebook, with the fault imported ----------------------------------------------------------


def inject(fault: Fault) -> None:
    """From now on this module is imported with its fault; its file and its cache stay as they are.

    A kernel calls this as it starts: its startup folder runs this file, and FAULT names a fault.
    """
    usual = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str):
        if name != fault.module:
            return usual(loader, name)
        path = loader.get_filename(name)
        return compile(fault.put_into(Path(path).read_text(encoding="utf-8")), path, "exec")

    SourceFileLoader.get_code = get_code


def run_notebook(number: str, fault_name: str) -> list[str]:
    """Run a notebook with a fault. Returns the cells that print something else."""
    (notebook,) = ROOT.glob(f"notebooks/{number}_*.ipynb")
    with TemporaryDirectory() as home:
        startup = Path(home, "profile_default", "startup")  # what every kernel runs first
        startup.mkdir(parents=True)
        Path(startup, "fault.py").write_text(f"import runpy\nrunpy.run_path({__file__!r})\n")
        report = pytest(ROOT, notebook, IPYTHONDIR=home, FAULT=fault_name)
    return [name for name, text in failures(report) if "Cell outputs differ" in text]


# -- a test, in a copy with the fault -------------------------------------------------------------


def run_tests(names: set[str], fault: Fault | None = None) -> list[str]:
    """Run tests, named as in ``Fault.seen_by``, in a copy. Returns the first that fails."""
    with TemporaryDirectory() as copy:
        for folder in ("minivllm", "tests"):
            ignored = shutil.ignore_patterns("__pycache__")  # with it, kernels compiled before
            shutil.copytree(ROOT / folder, Path(copy, folder), ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", copy)
        if fault is not None:
            path = Path(copy, "minivllm", fault.file)
            path.write_text(fault.put_into(path.read_text(encoding="utf-8")), encoding="utf-8")
        tests = []
        for name in sorted(names):
            file, *test = name.split("::")
            (path,) = Path(copy, "tests").rglob(file)
            tests.append("::".join([str(path), *test]))
        # A fault is looked for with all examples and combinations: the suite has a part of them.
        profile = "suite" if fault is None else "nightly"
        options = ("-x", f"--hypothesis-profile={profile}")
        report = pytest(Path(copy), *options, *tests, PYTHONPATH=copy)
    return [name for name, _ in failures(report)]


def pytest(folder: Path, *arguments: Path | str, **env: str) -> str:
    """Run pytest in a folder. Returns its report, as JUnit's XML."""
    with TemporaryDirectory() as home:
        report = Path(home, "report.xml")
        command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(
            [*command, f"--junitxml={report}"], env={**os.environ, **env}, cwd=folder,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode not in (0, 1):  # no test ran, or not to its end
            raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}")
        return report.read_text(encoding="utf-8")


def failures(xml: str) -> list[tuple[str, str]]:
    """Name and message of each test or cell that failed; an error of a fixture is no failure."""
    return [
        (case.get("name", ""), failure.text or "")
        for case in ET.fromstring(xml).iter("testcase")
        for failure in case.iter("failure")
    ]


def main(word: str = "") -> int:
    chosen = {name: fault for name, fault in FAULTS.items() if word in name}
    tests = {fault.seen_by for fault in chosen.values() if not fault.is_for_a_notebook}
    if tests and (failed := run_tests(tests)):
        print(f"without a fault these fail: {', '.join(failed)}")
        return 1
    unseen = 0
    for name, fault in chosen.items():
        start = time.perf_counter()
        if fault.is_for_a_notebook:
            seen = run_notebook(fault.seen_by, name)
        else:
            seen = run_tests({fault.seen_by}, fault)
        unseen += not seen
        told = f"seen {len(seen)} times: {seen[0]}" if seen else "NOT SEEN"
        file, seconds = fault.seen_by.partition("::")[0], time.perf_counter() - start
        print(f"{name:44} {file:33} {told} ({seconds:.0f} s)", flush=True)
    print(f"{len(chosen) - unseen} of {len(chosen)} faults are seen")
    return unseen


if "FAULT" in os.environ:  # in a kernel
    inject(FAULTS[os.environ["FAULT"]])
elif __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
