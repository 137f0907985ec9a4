"""Figures of notebook 24: rows that are pooled, rows that are seen, texts that are near."""

import pytest

from minivllm.viz import attention_masks, pooled_rows, similarity


def test_each_method_keeps_its_rows_and_refuses_what_it_cannot_take():
    figure = pooled_rows([(0, 2, 2), (1, 3, 3), (0, 1, 4)], mark=[("ALL", "C", 0, "kept")])
    assert [line.split() for line in figure.text.splitlines()[2:7]] == [
        "step A 0 1 B 1 2 C 0".split(),
        "LAST A . # B . # C .".split(),
        "CLS A # . B x x C x".split(),
        "MEAN A # # B x x C x".split(),
        "ALL A # # B # # C +".split(),
    ]
    assert "hatch" in figure.svg
    assert figure.text.endswith("^ ALL C 0: kept")


def test_a_decoder_sees_no_row_behind_and_both_see_their_own_prompt_only():
    figure = attention_masks([2, 1])
    assert figure.text.splitlines()[2:] == [
        "decoder: 4 pairs", "  A0 # . .", "  A1 # # .", "  B0 . . #",
        "encoder: 5 pairs", "  A0 # # .", "  A1 # # .", "  B0 . . #",
    ]  # fmt: skip


def test_the_nearest_text_is_named():
    figure = similarity([[0.2, 0.9], [-0.5, -0.6]], ["one", "two"], ["x", "y"], mark=[(0, 1, "!")])
    assert "one: y; two: x" in figure.alt
    assert "[ 0.90]" in figure.text
    assert "[-0.50]" in figure.text


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: pooled_rows([]), "chunks must be 1 to 54 rows"),
        (lambda: pooled_rows([(0, 2, 2)], ["FIRST"]), "methods must be of LAST, CLS"),
        (lambda: attention_masks([9, 8]), "lengths must be lengths of at least 1, 16 rows"),
        (lambda: attention_masks([3, 0]), "lengths must be lengths of at least 1, 16 rows"),
        (lambda: similarity([[1.0]], ["a"], ["b", "c"]), "numbers must be 1 rows of 2"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, named):
    with pytest.raises(ValueError, match=named):
        draw()
