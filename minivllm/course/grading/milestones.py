"""Milestones: the progress file, which belongs to the reader.

It has the day on which each lab was first passed, and how often its help was looked at:
``{"passed": {"cap": "2026-11-27"}, "peeks": {"cap": 1}}``. It is looked for in the working
directory and in those above it; ``minivllm lab`` makes one where there is none. Without one a
notebook notes in MINIVLLM_CACHE_ROOT what is passed. A broken file is never written to.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from minivllm import envs
from minivllm.utils.validation import is_int

FILE = "minivllm-progress.json"


@dataclass
class Progress:
    """Labs that a reader has passed, and looks at the help.

    Attributes:
        passed: by lab or milestone, the day on which it was first passed.
        peeks: by lab or milestone, how often its help was looked at.
    """

    passed: dict[str, str] = field(default_factory=dict)
    peeks: dict[str, int] = field(default_factory=dict)


def progress_file() -> Path:
    """The nearest progress file from the working directory upwards; else the notebooks' own."""
    here = Path.cwd()
    found = (folder / FILE for folder in (here, *here.parents))
    return next((path for path in found if path.exists()), envs.cache_root() / FILE)


def begin_progress() -> Path:
    """The progress file that the commands use: made in the working directory if there is none.

    Raises:
        ValueError: for a file that is no progress file.
        OSError: for a directory that cannot be written to.
    """
    path = progress_file()
    if path != envs.cache_root() / FILE:
        return path
    mine = Path.cwd() / FILE
    if not mine.exists():
        write_progress(mine, read_progress())
    return mine


def read_progress() -> Progress:
    """Read the progress file; nothing is noted yet if there is none.

    Raises:
        ValueError: for a file that is no progress file, saying why in a sentence.
    """
    path = progress_file()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Progress(_passed_before())
    except (OSError, UnicodeDecodeError) as error:
        raise _broken(path, str(error)) from error
    return parse_progress(text, path)


def parse_progress(text: str, path: Path) -> Progress:
    """The content of a progress file. Raises ``ValueError`` for a broken one, naming its path."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _broken(path, str(error)) from error
    if not isinstance(found, dict) or not found.keys() <= {"passed", "peeks"}:
        raise _broken(path, 'it must be {"passed": {...}, "peeks": {...}}')
    passed = found.get("passed", {})
    peeks = found.get("peeks", {})
    if not isinstance(passed, dict) or not all(map(_is_day, passed.values())):
        raise _broken(path, '"passed" must be days by name, such as {"cap": "2026-11-27"}')
    if not isinstance(peeks, dict) or not all(is_int(n, 0) for n in peeks.values()):
        raise _broken(path, '"peeks" must be counts by name, such as {"cap": 1}')
    return Progress(passed, peeks)


def format_progress(progress: Progress) -> str:
    """The text of a progress file."""
    return json.dumps(asdict(progress), indent=1, ensure_ascii=False) + "\n"


def write_progress(path: Path, progress: Progress) -> None:
    """Write the file as a whole: after an error it is what it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(format_progress(progress), encoding="utf-8")
    os.replace(part, path)


def passed() -> dict[str, str]:
    """The day on which each lab was first passed; solutions that ship with it do not count.

    Raises:
        ValueError: for a file that is no progress file.
    """
    return read_progress().passed


def note_passed(name: str) -> None:
    """Remember that a lab was passed. Where nothing can be written, nothing is."""
    try:
        progress = read_progress()
    except ValueError as error:
        print(f"not noted: {error}")
        return
    if name not in progress.passed:
        progress.passed[name] = date.today().isoformat()
        with suppress(OSError):
            write_progress(progress_file(), progress)


def note_peek(name: str) -> int:
    """Remember one more look at the help of a lab. Returns how many there were.

    Raises:
        ValueError: for a file that is no progress file.
        OSError: where it cannot be written.
    """
    progress = read_progress()
    progress.peeks[name] = progress.peeks.get(name, 0) + 1
    write_progress(progress_file(), progress)
    return progress.peeks[name]


def _passed_before() -> dict[str, str]:
    """Days by name, as older versions noted them."""
    with suppress(OSError, ValueError):
        old = envs.cache_root() / "labs.json"
        return parse_progress(f'{{"passed": {old.read_text(encoding="utf-8")}}}', old).passed
    return {}


def _is_day(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return bool(date.fromisoformat(value))
    except ValueError:
        return False


def _broken(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is no progress file ({why}): mend it, or move it away.")
