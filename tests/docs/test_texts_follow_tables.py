"""Texts follow their tables: what a sentence says of a table beside it is so in the stored output.

``CLAIMS`` has a line for each sentence that compares: less than, more than, first, about as. A
table's rows are read from the output that a notebook stores; so a table that is made again and a
sentence that was not changed are found.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
Table = dict[str, list[float]]  # the numbers of each row, by the words in front of them


@dataclass(frozen=True)
class Claim:
    """A sentence of a notebook, and what must be so in a table for it to be true.

    Args:
        notebook: its number.
        words: in the sentence.
        table: words in the output that has the table.
        holds: called with the table's rows.
    """

    notebook: str
    words: str
    table: str
    holds: Callable[[Table], bool]


def skills_left(rows: Table) -> dict[str, float]:
    """Share of the answers of each skill that are right at 2 bits, from counts and not per cent."""
    return {name: numbers[9] / numbers[0] for name, numbers in rows.items() if len(numbers) == 13}


def lost(rows: Table, column: int) -> float:
    """Right answers fewer than with floats, in per cent of all, in one column of the skills."""
    counts = [row for row in rows.values() if len(row) == 13]
    return 100 * sum(row[1] - row[column] for row in counts) / sum(row[0] for row in counts)


SKILLS = "table of 20 rows"
PERPLEXITY = "perplexity of SmolLM2-135M:"
CLAIMS = [
    Claim("18", "At 2 bits small talk fell deepest", SKILLS,
          lambda rows: min(skills_left(rows), key=skills_left(rows).get) == "small talk"),
    Claim("18", "from 39 of 39 to 9", SKILLS,
          lambda rows: [rows["small talk"][i] for i in (0, 1, 9)] == [39, 39, 9]),
    Claim("18", "of those 92 of 120 are left", SKILLS,
          lambda rows: [rows["capital"][i] for i in (0, 9)] == [120, 92]),
    Claim("18", "a larger share than of tables with 20 rows", SKILLS,
          lambda rows: skills_left(rows)["capital"] > skills_left(rows)["table of 20 rows"]),
    Claim("18", "Down to 3 bits hardly anything changes", SKILLS, lambda rows: lost(rows, 7) < 3),
    Claim("18", "has the same 2 bits and keeps more", SKILLS,
          lambda rows: all(row[11] > row[9] for row in rows.values() if len(row) == 13)),
    Claim("18", "Four bits cost our model a few answers; at two, small talk fell deepest", SKILLS,
          lambda rows: lost(rows, 5) < 3 and min(skills_left(rows).values()) ==
          skills_left(rows)["small talk"]),
    Claim("18", "lost less with AWQ than by rounding to nearest, and with GPTQ it did not",
          PERPLEXITY, lambda rows: rows["AWQ"] < rows["int4"] < rows["GPTQ"]),
    Claim("18", "8 bits are free, 4 bits are not", PERPLEXITY,
          lambda rows: rows["int8"][0] < 1.01 * rows["float"][0] < rows["AWQ"][0]),
    Claim("A3", "takes less time than `PagedTorch`", "plain loop",
          lambda rows: rows["plain loop"][0] < rows["paged_torch"][0]),
    Claim("A3", "the plain loop takes several times as long", "plain loop",
          lambda rows: rows["plain loop"][0] >= 2 * rows["paged_numba"][0]),
]  # fmt: skip
# Sentences that a table has refuted: they must not come back.
REFUTED = [
    ("18", r"learnt by heart goes first|short table survives|knows Madrid"),
    ("A3", r"about as slow as `PagedTorch`"),
]


def cells_of(number: str) -> list:
    (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    return nbformat.read(path, as_version=4).cells


def prose(cells: list) -> str:
    """Text of the cells, in one line each."""
    texts = (cell.source for cell in cells if cell.cell_type == "markdown")
    return "\n".join(" ".join(text.replace("**", "").split()) for text in texts)


def read_table(text: str) -> Table:
    """Numbers by the words before them: of a row, or of several names in one line."""
    rows = {}
    for line in text.splitlines():
        if named := re.match(r"(table of \d+ rows|[A-Za-z_][A-Za-z_ ]*?)\s+(?=\d)", line):
            rows[named[1]] = [float(n) for n in re.findall(r"\d+(?:\.\d+)?", line[named.end() :])]
        elif line.startswith(PERPLEXITY):
            pairs = re.findall(r"(\w+) (\d+\.\d+)", line.removeprefix(PERPLEXITY))
            rows |= {name: [float(number)] for name, number in pairs}
    return rows


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.notebook} {claim.words}")
def test_a_sentence_is_so_in_the_table_beside_it(claim):
    cells = cells_of(claim.notebook)
    assert claim.words.replace("**", "") in prose(cells)
    outputs = [output.get("text", "") for cell in cells for output in cell.get("outputs", [])]
    found = [read_table(text) for text in outputs if claim.table in text]
    assert found, f"no output has {claim.table!r}"
    assert claim.holds(found[0]), found[0]


@pytest.mark.parametrize(("number", "words"), REFUTED)
def test_a_sentence_that_a_table_refutes_is_gone(number, words):
    assert not re.search(words, prose(cells_of(number)))


def test_a_table_is_read_with_the_numbers_of_its_rows():
    text = (
        f"    cases\ntable of 20 rows   60   57  95%\nplain loop  138.6 ms\n{PERPLEXITY}  int4 2.5"
    )
    rows = {"table of 20 rows": [60, 57, 95], "plain loop": [138.6], "int4": [2.5]}
    assert read_table(text) == rows
