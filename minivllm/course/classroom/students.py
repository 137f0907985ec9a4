"""read_students: a class from a CSV file, one student a line: number, name."""

from __future__ import annotations

import csv
from pathlib import Path

from minivllm.utils.validation import check


def read_students(path: Path) -> dict[str, str]:
    """Read the names of a class, by number, in the order of the file.

    Args:
        path: a CSV file with commas or semicolons. A first line that begins with "number" is a
            heading; what comes after the name is not read, and a name may be missing.

    Raises:
        ValueError: for a file that cannot be read or has no student, a number with other
            characters than letters and digits, and one that comes twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"students: {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"students: {path} is no text in UTF-8.") from error
    lines = text.splitlines()
    is_european = bool(lines) and ";" in lines[0] and "," not in lines[0]
    students: dict[str, str] = {}
    line_of: dict[str, int] = {}
    reader = csv.reader(lines, delimiter=";" if is_european else ",")
    for row in reader:
        number, name = ([cell.strip() for cell in row] + ["", ""])[:2]
        is_heading = not students and number.lower() == "number"
        if is_heading or not any(row):
            continue
        here = f"students, line {reader.line_num}"
        check(number.isalnum() and number.isascii(), here, number, "a number: letters and digits")
        first = line_of.setdefault(number, reader.line_num)
        check(first == reader.line_num, here, number, f"another number than that of line {first}")
        students[number] = name
    check(bool(students), "students", str(path), "a file with a line for each: number, name")
    return students
