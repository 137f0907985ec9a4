"""The guide's page of models: its formula gives its rows, and its figures are the recorded ones."""

import re
from pathlib import Path

import pytest

from minivllm.lab.quantize.measured import perplexities
from minivllm.models.packages import packed_models
from minivllm.sim import MODELS

PAGE = (Path(__file__).parents[2] / "notebooks/guide/models.md").read_text(encoding="utf-8")
TOKENS, LAPTOPS, SHARE = 4096, (4, 8, 16, 32), 0.75


def rows(heading):
    """Cells of a table that begins with these words."""
    table = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


LAPTOP_ROWS = rows("model | parameters")


def test_there_are_five_sizes():
    assert len(LAPTOP_ROWS) == 5


@pytest.mark.parametrize("row", LAPTOP_ROWS, ids=lambda row: row[0])
def test_the_formula_gives_the_row(row):
    parameters, bits = float(row[1]), float(row[2])
    layers, heads, size = map(int, row[3:6])
    kv_bytes = 2 * layers * heads * size * 2
    weights, kv = parameters * bits / 8, TOKENS * kv_bytes / 1e9
    memory = weights + kv + 1
    laptop = next(gb for gb in LAPTOPS if memory <= SHARE * gb)
    told = [f"{kv_bytes:,}", f"{weights:.2f}", f"{kv:.2f}", f"{memory:.1f}", str(laptop)]
    assert row[6:] == told


def test_a_row_has_the_shape_that_the_simulator_knows():
    (row,) = (row for row in LAPTOP_ROWS if row[0] == "Llama-3.1-8B")
    assert int(row[6].replace(",", "")) == MODELS["llama-8b"].kv_bytes_per_token


def test_a_row_is_as_large_as_the_file():
    (row,) = (row for row in LAPTOP_ROWS if row[0] == "SmolLM2-135M")
    assert float(row[1]) * float(row[2]) / 8 * 1e9 == pytest.approx(
        packed_models()["smollm2"].size, rel=0.01
    )


def test_perplexities_are_the_recorded_ones():
    recorded = {name: f"{found:.2f}" for table in perplexities().values()
                for name, found in table.items()}  # fmt: skip
    told = {row[0].strip("`"): row[1] for row in rows("weights, K and V | perplexity")}
    assert told == recorded


def test_sizes_to_fetch_are_those_of_the_list():
    for name, size in re.findall(r"`minivllm pull (\w+)[^`]*` \((\d+) MB\)", PAGE):
        assert int(size) == round(packed_models()[name].download_size / 1e6)
