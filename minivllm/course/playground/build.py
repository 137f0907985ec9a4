"""build: the playground as a folder of files, for any web server that serves them as they are.

``python -m minivllm.course.playground.build site/playground`` needs npm, which fetches Pyodide; the
page itself then fetches nothing from elsewhere.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from importlib.metadata import files
from pathlib import Path

from minivllm.course.playground.texts import PAGE, files_with_texts, known_languages

PACKAGE = Path(__file__).parents[2]
REPORT = PACKAGE / "lab/viz/page"
SHARED = (
    "tokens.css", "draw.css", "header.css", "timeline.css", "dock.css",
    "draw.js", "stepping.js", "theme.js", "timeline.js", "dock.js",
)  # fmt: skip
PYODIDE = "pyodide@314.0.7"
PYODIDE_FILES = (
    "pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json",
)  # fmt: skip
# What a page asks for before Python starts in its worker.
NEEDED_BY_PYTHON = ("engine.js", *(f"pyodide/{name}" for name in PYODIDE_FILES), "minivllm.zip")
NEEDED = ("jinja2", "markupsafe", "polib")  # what figures and catalogues import: all work as Python
LEFT_OUT = ("*.safetensors", "tokenizer.json", "*.pyc")  # weights and vocabularies: they need torch


def build(directory: Path) -> None:
    """Write the page in each language, its worker, Pyodide and the package into a folder.

    The folder is made anew.

    Raises:
        ValueError: without npm, or if npm cannot fetch Pyodide; for a catalogue that is broken.
    """
    shutil.rmtree(directory, ignore_errors=True)
    files = page_files()
    for language in known_languages():
        texts = files_with_texts("worker", language)
        files |= {name: text.encode() for name, text in texts.items()}
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    npm_files(PYODIDE, PYODIDE_FILES, directory / "pyodide")
    zip_package(directory / "minivllm.zip")


def page_files() -> dict[str, bytes]:
    """Files of the page by name that are the same in each language: scripts and styles."""
    paths = [*PAGE.iterdir(), *(REPORT / name for name in SHARED)]
    return {path.name: path.read_bytes() for path in paths if path.suffix != ".html"}


def npm_files(package: str, names: Iterable[str], directory: Path) -> None:
    """Put files of a package of npm into a folder, which is made.

    Args:
        package: with its version, such as "pyodide@314.0.7".
        names: of files of the package, with their folders there.
        directory: where they go.

    Raises:
        ValueError: without npm, or if npm cannot fetch the package.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(["npm", "pack", "--silent", "--prefer-offline", package], cwd=folder,
                           check=True, capture_output=True, text=True)  # fmt: skip
        except FileNotFoundError:
            raise ValueError("building the playground needs npm, which is not in PATH.") from None
        except subprocess.CalledProcessError as error:
            raise ValueError(f"npm cannot fetch {package}: {error.stderr.strip()}") from error
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as packed:
            for name in names:
                with packed.extractfile(f"package/{name}") as file:
                    (directory / Path(name).name).write_bytes(file.read())


def zip_package(path: Path) -> None:
    """Write a zip of this package, without weights, and of what its figures import."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(PACKAGE.rglob("*")):
            if file.is_file() and not any(map(file.match, LEFT_OUT)):
                archive.write(file, file.relative_to(PACKAGE.parent))
        for name in NEEDED:
            for file in files(name) or ():
                if file.suffix == ".py":
                    archive.write(file.locate(), file)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
