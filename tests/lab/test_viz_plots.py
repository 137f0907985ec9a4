"""Plots: their dark twin, and words of marks that keep off the curves."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from minivllm.lab.viz.draw.free_spot import free_spot
from minivllm.lab.viz.draw.palette import INK, OKABE_ITO, PAPER, dark
from minivllm.lab.viz.draw.png import dark_png
from minivllm.viz import plot


def curves():
    """Three lines that fall, one below the other."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    x = np.arange(30.0)
    for width, colour in ((2, OKABE_ITO[0]), (5, OKABE_ITO[3]), (15, INK)):
        axes.plot(x, np.exp(-x / width), color=colour, label=f"width {width}")
    axes.legend()
    return figure, axes


def colours_of(png):
    pixels = Image.open(BytesIO(png)).convert("RGB")
    return {"#" + bytes(pixel).hex() for _, pixel in pixels.getcolors(1 << 20)}, pixels


def test_a_dark_twin_has_the_same_picture_on_dark_paper():
    figure, _ = curves()
    light = plot(figure, "Three falling lines.", title="They fall").png
    colours, _ = colours_of(light)
    twin, pixels = colours_of(dark_png(light))
    assert {PAPER, OKABE_ITO[0], OKABE_ITO[3]} <= colours
    assert pixels.getpixel((0, 0)) == tuple(bytes.fromhex(dark("#fafafa")[1:]))
    assert {OKABE_ITO[0], OKABE_ITO[3]} <= twin, "full colours stay"
    assert max(sum(bytes.fromhex(c[1:])) for c in twin) > 3 * 200, "ink is light"
    assert PAPER not in twin


def test_a_picture_without_a_table_of_colours_stays_as_it_is():
    drawn = BytesIO()
    Image.new("RGB", (4, 4), "white").save(drawn, format="png")
    assert dark_png(drawn.getvalue()) == drawn.getvalue()
    assert dark_png(b"no picture") == b"no picture"


@pytest.mark.parametrize("at", [0, 3, 5, 8, 20, 28])
@pytest.mark.parametrize("width", [2, 5, 15])
def test_words_of_a_mark_are_on_no_curve_and_no_legend(at, width):
    figure, axes = curves()
    figure.draw_without_rendering()
    place = (at, float(np.exp(-at / width)))
    right, up = free_spot(axes, place, "a few words")
    words = axes.annotate(
        "a few words", place, xytext=(right, up), textcoords="offset points", fontsize=9,
        fontweight="bold", va="center", ha="left" if right > 0 else "right",
    )  # fmt: skip
    figure.draw_without_rendering()
    box = words.get_window_extent()
    for line in axes.lines:
        dense = np.interp(np.linspace(0, 29, 3000), line.get_xdata(), line.get_ydata())
        pixels = axes.transData.transform(np.column_stack([np.linspace(0, 29, 3000), dense]))
        assert not any(box.contains(x, y) for x, y in pixels)
    assert not box.overlaps(axes.get_legend().get_window_extent())
    assert axes.get_window_extent().containsx(box.x0)
    assert axes.get_window_extent().containsx(box.x1)
