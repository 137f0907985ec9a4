"""Operations and bytes of a step, the roof above them, and its picture."""

import pytest
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st

from minivllm.embedded import embedded_model_path
from minivllm.lab.bench.roofline import work_of
from minivllm.lab.bench.workloads import BenchRequest
from minivllm.lab.sim.cost import HARDWARE, MODELS, CostModel, Hardware, Work, attended_pairs
from minivllm.models.loader import load_config
from minivllm.viz import roofline

A100, LLAMA = HARDWARE["a100"], MODELS["llama-8b"]
TOY = Hardware("toy", flops_per_s=400.0, bytes_per_s=100.0, memory_bytes=1.0)

# -- what a step computes and moves --------------------------------------------------------------


def decodes(batch, context):
    return [(context - 1, 1)] * batch


def test_a_decode_step_by_hand():
    work = LLAMA.step_work(decodes(8, 1000))
    assert work.flops == 8 * (2 * 8.03e9 + 4 * 32 * 32 * 128 * 1000)
    assert work.num_bytes == 16.06e9 + 8 * 1001 * 131_072  # one token's K and V are written
    assert work.intensity == work.flops / work.num_bytes


@examples(30)
@given(sequences=st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 900)), min_size=1))
def test_the_simulators_clock_is_the_roofline_of_this_work(sequences):
    """Any mixture of chunks and decodes; the clock adds what each step costs anyway."""
    num_tokens = sum(new for _, new in sequences)
    pairs = sum(attended_pairs(*sequence) for sequence in sequences)
    num_kv = sum(map(sum, sequences)) + num_tokens
    seconds = CostModel(A100, LLAMA).step_seconds(num_tokens, pairs, num_kv)
    least = A100.least_seconds(LLAMA.step_work(sequences))
    assert seconds == pytest.approx(least + A100.overhead_s)


def test_a_prompt_in_chunks_is_the_same_arithmetic_and_more_reading():
    whole = LLAMA.step_work([(0, 2048)])
    chunks = [LLAMA.step_work([(start, 512)]) for start in range(0, 2048, 512)]
    assert sum(chunk.flops for chunk in chunks) == whole.flops
    more = sum(chunk.num_bytes for chunk in chunks) - whole.num_bytes
    assert more == 3 * LLAMA.weight_bytes + (512 + 1024 + 1536) * 131_072


@pytest.mark.parametrize("name", MODELS)
def test_attention_alone_does_the_group_size_per_number_whatever_the_batch(name):
    model = MODELS[name]
    group = model.num_heads / model.num_kv_heads
    for batch in (1, 64, 1000):
        work = model.attention_work(decodes(batch, 4096))
        expected = 2 * group / model.bytes_per_number * 4096 / 4097  # one token is written
        assert work.intensity == pytest.approx(expected)


def test_the_benchmarks_count_the_same():
    """``shape_of`` counts a config's matrices; the simulator is told the number of parameters.

    The embedded model's head is its embedding, so that every parameter is multiplied.
    """
    config = load_config(embedded_model_path())
    counted = work_of(config, [[BenchRequest([1] * 99, 2)] * 16], 4)
    step = MODELS["embedded"].step_work(decodes(16, 100))
    assert counted.decode.flops == pytest.approx(step.flops, rel=0.01)
    assert counted.decode.num_bytes == pytest.approx(step.num_bytes, rel=0.01)


# -- the roof ------------------------------------------------------------------------------------


def test_the_roof_bends_at_the_ridge():
    assert TOY.ridge == 4.0
    assert [TOY.attainable(x) for x in (1, 2, 4, 8)] == [100, 200, 400, 400]
    assert A100.ridge == 156
    for work, seconds in [(Work(100, 50), 0.5), (Work(400, 100), 1.0), (Work(800, 100), 2.0)]:
        assert TOY.least_seconds(work) == seconds
        assert work.flops / seconds == TOY.attainable(work.intensity)
    assert Work(1, 2) + Work(3, 4) == Work(4, 6)


# -- the picture ---------------------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn, as matplotlib has them."""
    figures = []
    monkeypatch.setattr(
        "minivllm.lab.viz.draw.plots.to_png", lambda figure: figures.append(figure) or b""
    )
    return figures


POINTS = {"decode": {"batch 1": 1, "batch 8": 6.0}, "measured": {1: (1, 25), "x": (8.0, 500.0)}}


def test_points_stand_on_the_roof_or_where_they_were_measured(drawn):
    roofline(TOY, POINTS)
    (axes,) = drawn[0].axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    marks = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
    places = [(line.get_xdata()[0], line.get_ydata()[0]) for line in marks]
    assert places == [(1, 100), (6, 400), (1, 25), (8, 500)]
    hollow = [line.get_markerfacecolor() == "white" for line in marks]
    assert hollow == [True, True, False, False]
    roof = next(line for line in axes.lines if len(line.get_xdata()) == 3)
    assert (TOY.ridge, TOY.flops_per_s) in list(zip(*roof.get_data(), strict=True))
    low, high = axes.get_xlim()
    assert low < 1 < 8 < high
    assert axes.get_ylim()[0] < 25
    said = {text.get_text() for text in axes.texts}
    assert {"batch 1", "batch 8", "1", "x", "toy: 100 B/s", "400 FLOP/s", "ridge 4"} <= said


def test_equal_peaks_are_named_once_and_every_slope(drawn):
    cache = Hardware("from its cache", 400.0, 1000.0, 1.0)
    roofline([TOY, cache], POINTS)
    said = [text.get_text() for text in drawn[0].axes[0].texts]
    assert said.count("400 FLOP/s") == 1
    assert {"toy: 100 B/s", "from its cache: 1 kB/s"} <= set(said)


def test_an_arrow_leads_from_a_point_to_that_of_another_series_with_its_label(drawn):
    points = {"16 bits": {"one": 1, "two": 2, "three": 3}, "4 bits": {"two": 8, "one": 4}}
    said = roofline(TOY, points, moved=("16 bits", "4 bits")).alt
    arrows = [text for text in drawn[0].axes[0].texts if text.get_text() == ""]
    assert [(arrow.xyann, arrow.xy) for arrow in arrows] == [
        ((1, 100), (4, 400)), ((2, 200), (8, 400)),
    ]  # fmt: skip
    assert said.endswith("From 16 bits to 4 bits: one moves from 1 to 4; two moves from 2 to 8.")
    with pytest.raises(ValueError, match="moved must be two series that have a label in common"):
        roofline(TOY, points, moved=("16 bits", "2 bits"))


@pytest.mark.slow
def test_what_it_says_in_words():
    plot = roofline(TOY, POINTS, "a title")
    assert plot.png.startswith(b"\x89PNG")
    assert roofline(TOY, POINTS, "a title").png == plot.png
    moved = POINTS | {"measured": {1: (1, 50)}}
    assert roofline(TOY, moved, "a title").png != plot.png
    title, head, _, *rows = plot.text.splitlines()
    assert title == "a title"
    assert head == "toy: 400 FLOP/s, 100 B/s, ridge at 4 operations per byte"
    assert [row.split() for row in rows] == [
        ["decode", "batch", "1", "1", "100", "on", "it", "bandwidth"],
        ["decode", "batch", "8", "6", "400", "on", "it", "arithmetic"],
        ["measured", "1", "1", "25", "25%", "bandwidth"],
        ["measured", "x", "8", "500", "125%", "arithmetic"],
    ]
    assert "measured x at 8, 125% of the roofline" in plot.alt
    assert "decode batch 8 at 6;" in plot.alt


def test_a_point_at_the_ridge_is_bound_by_arithmetic():
    (row,) = roofline(TOY, {"": {"here": TOY.ridge}}).text.splitlines()[2:]
    assert row.split()[-1] == "arithmetic"


@pytest.mark.parametrize("point", [0, -1.0, (1, 0), (1, 2, 3), (), "x", float("nan"), None])
def test_a_point_is_one_or_two_numbers(point):
    with pytest.raises(ValueError, match=r"points\['a'\]\['b'\] must be one or two finite numbers"):
        roofline(TOY, {"a": {"b": point}})


def test_something_must_be_drawn():
    with pytest.raises(ValueError, match="machines must be at least one"):
        roofline([], POINTS)
    for nothing in ({}, {"decode": {}}):
        with pytest.raises(ValueError, match="points must be at least one"):
            roofline(TOY, nothing)
