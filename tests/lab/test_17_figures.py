"""Figures of notebook 17: slots of adapters over steps, sorted rows, W beside B and A."""

from functools import cache

import pytest
from test_viz_figures import chunked

from minivllm.exercises import make_request
from minivllm.lora.request import LoRARequest
from minivllm.sim import dry_run
from minivllm.viz import lora_slots, low_rank, sorted_rows

PIRATE, SQL = LoRARequest("pirate", 1, "pirate"), LoRARequest("sql", 2, "sql")


@cache
def adapters():
    """One slot: sql is skipped while pirate runs, and the base model overtakes it."""
    queue = [
        make_request("A", 5, 3, lora_request=PIRATE),
        make_request("B", 5, 2, lora_request=SQL),
        make_request("C", 5, 2),
        make_request("D", 5, 1, lora_request=PIRATE),
        make_request("E", 5, 1, 1),
    ]
    return dry_run(queue, num_blocks=20, block_size=4, max_loras=1, max_num_seqs=3)


def test_slots_over_steps_and_the_requests_that_are_skipped():
    lines = lora_slots(adapters()).text.splitlines()
    assert lines[1] == "1 slot · 2 adapters · 2 loads, 1 eviction"
    signs = {line[:22].strip(): line[22:] for line in lines[3:]}
    assert signs["slot 0"] == "AaaBb"
    assert signs["A pirate"] == "aaa"
    assert signs["B sql"] == "sssbb"
    assert signs["C"] == "••"
    assert signs["D pirate"] == "a"
    assert signs["E"].strip("░") == " •"


def test_words_of_a_picture_of_slots():
    alt = lora_slots(adapters()).alt
    assert "slot 0: pirate steps 0–2, sql steps 3–4" in alt
    assert "B (sql) skipped steps 0–2, runs steps 3–4" in alt


def test_a_legend_explains_what_is_drawn_and_no_more():
    """None waits in either run, and none is skipped in the first."""
    one = dry_run([make_request("A", 5, 3, lora_request=PIRATE)], num_blocks=20, max_loras=1)
    last = lora_slots(one).text.splitlines()[-1]
    assert last == "a pirate  capital: loaded"
    assert "skipped" not in lora_slots(one).svg
    assert lora_slots(adapters()).text.endswith("• base  s skipped")
    assert "s, skipped: its adapter has no slot" in lora_slots(adapters()).svg


def test_rows_are_where_their_adapter_is():
    figure = sorted_rows([1, -1, 0, 1, 0], ["pirate", "sql"])
    assert figure.text.splitlines()[1:] == [
        "5 rows, 2 adapters", "none: row 1", "pirate: rows 2 4", "sql: rows 0 3",
    ]  # fmt: skip


def test_two_thin_matrices_beside_a_large_one():
    text = low_rank(100, 40, 4).text
    assert "560 numbers beside 4,000: 14.0%" in text
    assert "A  4 × 40: 160 numbers" in text


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: lora_slots(chunked()), "a run in which an adapter was loaded"),
        (lambda: sorted_rows([], []), "slots must be 1 to"),
        (lambda: sorted_rows([1], ["one"]), "slots must be -1, or a number of the 1 names"),
        (lambda: low_rank(8, 4, 5), "rank must be an integer from 1 to 4"),
        (lambda: low_rank(0, 4, 1), "out_features must be an integer of at least 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, named):
    with pytest.raises(ValueError, match=named):
        draw()
