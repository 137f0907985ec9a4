"""Claims and marks: every figure says in its first line what it shows, and points at it."""

import inspect
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from marked_figures import callouts, distance, root_of
from test_14_draft_figures import speculating
from test_17_figures import adapters
from test_20_figures import GROUPED, exchanged, staged
from test_22_figures import four
from test_viz_figures import SVG, check_figure, chunked, drawing, forking, preempting, sharing
from traced_runs import overlapped, pictures, windowed

import minivllm.viz as viz
from minivllm.entrypoints.openai.tool_parsers.hermes_tool_parser import HermesToolParser
from minivllm.lab.contiguous.manager import SlotUsage
from minivllm.lab.sim.cost import Hardware
from minivllm.lab.sim.workloads import alpaca_like
from minivllm.lab.viz.draw.band import open_band
from minivllm.lab.viz.draw.figure import finish
from minivllm.lab.viz.draw.ink import Ink
from minivllm.lab.viz.draw.layout import SWATCH_HEIGHT, SWATCH_WIDTH, sheet
from minivllm.lab.viz.draw.outlines import absolute, polylines, shapes_of
from minivllm.lab.viz.draw.palette import ACCENT, GREY, INK, OKABE_ITO, PAPER, dark, owners_of
from minivllm.lab.viz.draw.svg import text_width
from minivllm.sim import dry_run, launch_graph, simulate
from minivllm.structured_output.dfa import DFA
from minivllm.worker.model_input import ModelInput

CLAIM = "A and B wait while C is read, and nothing else makes the rest of this sentence long"
TOY = Hardware("toy", flops_per_s=400.0, bytes_per_s=100.0, memory_bytes=1.0)
BATCH = ModelInput(
    token_ids=[7, 8, 9], positions=[4, 0, 1], query_lens=[1, 2], seq_lens=[5, 2],
    slots=[[12, 16, 17]], block_tables=[[[1, 3], [4]]],
).to_tensors(torch.device("cpu"))  # fmt: skip
PROBS = {"x": 0.75, "y": 0.25}


def drafted():
    return speculating()


def forgetful():
    return windowed({"A": 20, "B": 9})


def runs():
    return {"one": dry_run(four(), max_num_seqs=1, num_blocks=40, block_size=4)}


def rates():
    return {
        rate: simulate(alpaca_like(20, rate, seed=0), num_blocks=40, block_size=16)
        for rate in (5.0, 40.0)
    }


FIGURES = {  # by name: its arguments, a place that it has, and one that it has not
    "attention_masks": (([2, 3],), ("decoder", 1, 0), ("decoder", 0, 9)),
    "automaton": ((DFA("a+b"),), (1,), (9,)),
    "beam_tree": ((forking,), ("A2", 1), ("Z", 1)),
    "bit_fields": (({"word": [("q0", 4), ("q1", 4)]},), ("word", 1), ("word", 9)),
    "block_grid": ((chunked,), (4,), (99,)),
    "block_table": ((chunked,), ("C", 1), ("C", 9)),
    "buckets": (({"1": 2, "+Inf": 3},), ("1",), ("2",)),
    "call_stream": ((HermesToolParser(), ["a", "b"]), (2,), (3,)),
    "compare": (({"a": chunked, "b": preempting},), ("b", "C", 3), ("b", "C", 99)),
    "draft_lanes": ((drafted,), (2, 9), (2, 99)),
    "filmstrip": ((chunked, [0, 3]), (3, 4), (2, 4)),
    "gather_arrows": (({"A": [0, 1], "B": [4]}, 2, 4), ("A", 1), ("B", 1)),
    "held_blocks": ((forgetful, [12, 12]), ("full", 1), ("full", 99)),
    "key_lanes": ((8, 128), ("lanes", 127), ("lanes", 9)),
    "lanes": ((runs,), ("one", "B", 2), ("one", "B", 99)),
    "launch_lanes": (({"graph": launch_graph([2.0, 3.0], 5.0)},), ("graph", "GPU"), ("x", "GPU")),
    "lora_slots": ((adapters,), ("slot 0", 1), ("slot 9", 1)),
    "low_rank": ((8, 6, 2), ("B",), ("C",)),
    "ngram_lookup": (([1, 2, 3, 1, 2], 1, 2, 2), (2,), (3,)),
    "number_line": (([0.1, -0.3, 0.7], {"int2": [-0.5, 0.0, 0.5]}), ("int2",), ("int9",)),
    "overlap_lanes": (({"a": overlapped},), ("a", "CPU", 1), ("a", "GPU", 1)),
    "padded_batch": ((chunked, 3), ("flat", 4), ("flat", 99)),
    "patch_slots": ((pictures, "cat", [["#102030"] * 5] * 2), ("slot", 1), ("slot", 99)),
    "pipeline_grid": ((staged,), (1, 1), (9, 1)),
    "pooled_rows": (([(0, 3, 3), (2, 4, 9)],), ("step", "A", 1), ("step", "Z", 1)),
    "prefix_tree": ((sharing,), (1,), (99,)),
    "probability_lines": (({"row": PROBS}, 0.5), ("row", "x"), ("row", "z")),
    "program_loads": (({"program 0": [3, 4]},), ("program 0", 1), ("program 0", 2)),
    "pushed_error": (([[0.3, 0.6], [0.0, 0.7], [0.0, 1.0]],), (1, 0), (9, 0)),
    "queues": ((preempting,), ("C", 3), ("C", 99)),
    "rank_lanes": ((exchanged,), (3, 0), (9, 0)),
    "rejection_bars": ((PROBS, PROBS), ("x",), ("z",)),
    "share_grid": (([[0.9, 0.1]], ["a"], ["b", "c"]), (0, 1), (0, 9)),
    "sharded_layer": ((GROUPED, 2), ("sum", "o_proj"), ("sum", "qkv_proj")),
    "similarity": (([[0.9, 0.2]], ["a"], ["b", "c"]), (0, 1), (0, 9)),
    "sorted_rows": (([0, -1, 0], ["pirate"]), ("sorted", 2), ("sorted", 3)),
    "step_bars": (({"TP 2": (5.0, 3.0, 5.1)},), ("TP 2 CPU",), ("TP 4 CPU",)),
    "stepper": ((chunked, [0, 3]), (3, 4), (2, 4)),
    "step_mask": ((chunked, 1), ("B1", "B0"), ("B1", "D2")),
    "step_tensors": (({"step 5": BATCH}, 4), ("step 5", "positions", 1), ("step 5", "x", 1)),
    "time_shares": (({"a": 0.1, "b": 0.2},), ("b",), ("c",)),
    "table_strip": (({"a": chunked, "b": preempting}, "A", [0, 1]), ("b", 1), ("b", 2)),
    "timeline": ((chunked,), ("blocks", 4), ("rows", 4)),
    "token_strips": (([viz.TokenStrip("s", {1})], 10), ("s",), ("t",)),
    "wire": (({"end": b"0\r\n\r\n"},), ("end", "chunk"), ("end", "text")),
    "wire_text": ((b"5\r\ndata: [DONE]\n\n\r\n",), ("event",), ("text",)),
    "waste_bars": (({"paged": SlotUsage(6, 0, 2, 0, 0, 0)},), ("paged", "tokens"), ("paged", "x")),
    "word_tiles": (({"GPTQ": [(0, 0), (1, 0)]},), ("GPTQ",), ("AWQ",)),
}
PLOTS = {
    "knee": ((rates,), ("TTFT", 5.0, 20.0), ("TTFT", -5.0, 20.0)),
    "latency": ((chunked,), ("ITL", 1, 0.5), ("ITL", 1, 1.5)),
    "memory_bars": (({"L4": (9.0, {"a": {"weights": 5.0}})},), (0, 0.000001), (0, 7.0)),
    "pareto": (({"a": (1, 2), "b": (2, 1)},), (1, 2), (9, 9)),
    "roofline": ((TOY, {"": {"here": 4.0}}), (4.0, 400.0), (4.0, 40000.0)),
    "speedups": (({"k": {1: 2.0, 2: 1.0}}, "batch"), (2, 1.0), (3, 1.0)),
}
NOT_DRAWN = {"save_chrome_trace", "save_html", "show", "plot"}  # ``plot`` is below all of PLOTS


def call(name, **keywords):
    """A world is made when it is asked for: tests that are not run cost nothing."""
    made = []
    for argument in (FIGURES | PLOTS)[name][0]:
        if isinstance(argument, dict):
            argument = {key: run() if callable(run) else run for key, run in argument.items()}
        made.append(argument() if inspect.isfunction(argument) or hasattr(argument, "cache_info")
                    else argument)  # fmt: skip
    figure = getattr(viz, name)(*made, **keywords)
    return getattr(figure, "still", figure)


def test_every_figure_takes_a_claim_and_marks():
    drawn = {name for name in viz.__all__ if name.islower()} - NOT_DRAWN
    assert drawn == FIGURES.keys() | PLOTS.keys()
    for name in drawn | {"plot"}:
        parameters = inspect.signature(getattr(viz, name)).parameters
        assert parameters["title"].default is None
        assert parameters["mark"].default == ()


@pytest.mark.parametrize("name", FIGURES)
def test_a_claim_is_above_todays_title_and_marks_are_at_their_places(name):
    _, place, missing = FIGURES[name]
    plain, mark = call(name), [(*place, "look here")]
    figure = call(name, title=CLAIM, mark=mark)
    if name != "stepper":  # whose sentences are longer than a terminal is wide
        check_figure(figure, call(name, title=CLAIM, mark=mark))
    root = drawing(figure)
    texts = list(root.iter(f"{SVG}text"))
    bold = [t for t in texts if t.get("font-weight") == "bold" and t.get("font-size") == "15"]
    assert " ".join(text.text for text in bold) == CLAIM
    for line in bold:
        room = float(root.get("width")) - float(line.get("x"))
        assert text_width(line.text, 15, bold=True) <= room
    title = ET.fromstring(plain.svg).find(f".//{SVG}text[@font-size='15']")
    if name != "stepper":  # there the words of the steps come first
        assert texts[len(bold)].text.startswith(title.text)
    ((at, framed, box, words),) = callouts(root_of(figure.svg))
    assert (at, words) == (" ".join(map(str, place)), "look here")
    assert distance(framed, box) <= 30
    assert figure.alt.startswith(CLAIM)
    assert "look here" in figure.alt
    assert "look here" in figure.text
    with pytest.raises(ValueError, match=r"mark must be .*places are .*got"):
        call(name, mark=[(*missing, "nothing is here")])


@pytest.mark.slow
@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_says_and_points_too(name):
    _, place, missing = PLOTS[name]
    plot, plain = call(name, title=CLAIM, mark=[(*place, "look here")]), call(name)
    assert plot.png != plain.png
    assert plot.alt.startswith(CLAIM)
    assert "look here" in plot.alt
    assert plot.text.splitlines()[0] == CLAIM
    with pytest.raises(ValueError, match=r"mark must be x from .* y from .*, got"):
        call(name, mark=[(*missing, "nothing is here")])


def test_marks_that_meet_stay_apart_and_inside():
    marks = [("A", 0, "the first of them"), ("A", 1, "and one beside it"), ("C", 3, "x" * 60)]
    figure = viz.timeline(chunked(), mark=marks)
    check_figure(figure, figure)
    found = list(callouts(root_of(figure.svg)))
    assert {words for *_, words in found} == {words for *_, words in marks}
    for i, (_, framed, box, _) in enumerate(found):
        assert distance(framed, box) <= 30
        assert box[2] <= float(drawing(figure).get("width"))
        assert all(distance(box, other) > 0 for _, _, other, _ in found[:i])


def test_words_of_a_mark_lie_on_nothing_else():
    """Among twelve rows without a gap: a band is opened, and what is below it moves down."""
    crowded = dry_run([(3, 12)] * 12, num_blocks=99, block_size=4)
    for step in (0, 11):
        for name in "AL":
            marks = [(name, step, "here, and nowhere else"), ("tokens", step, "all of them")]
            root = root_of(viz.timeline(crowded, mark=marks).svg)
            _, *shapes = (s for s in shapes_of(root) if s.look.get("stroke") != ACCENT)
            for _, _, (left, top, right, bottom), words in callouts(root):
                ink = Ink(float(root.get("height")), (s for s in shapes if not says(s, words)))
                assert ink.is_free(left, top, right - left, bottom - top), (name, step, words)


def says(shape, words):
    return shape.element.tag == "text" and shape.element.text in words


def test_where_nothing_is_free_words_are_in_a_row_on_top():
    paper = sheet("All of it", "is full", "A full sheet.", right=900, bottom=300)
    paper.rect(0, 60, 960, 260, fill="#000000")
    paper.place(("here",), 300, 200, 20, 20)
    figure = finish(paper, "full", mark=[("here", "in the dark")])
    ((_, framed, words, _),) = callouts(root_of(figure.svg))
    assert words[3] < 75 < 190 < framed[1]


@pytest.mark.parametrize(
    "d", ["M1 2h3v4h-3z", "M1 2L4 2L4 6L1 6Z", "M1 2H4V6H1Z", "m1 2 3 0 0 4-3 0z"]
)
def test_a_path_is_read_in_whatever_letters_it_is_written(d):
    (line,) = polylines(absolute(d))
    assert line == [(1, 2), (4, 2), (4, 6), (1, 6), (1, 2)]


def test_a_band_moves_what_is_below_it_and_cuts_nothing_in_two():
    texts = ET.fromstring('<g><rect x="0" y="0" width="9" height="10"/><text x="0" y="30">a</text>'
                          '<path d="M5 0V40" stroke="#000"/></g>')  # fmt: skip
    (opened,) = open_band([texts], at=12, height=20, around=(0, 0, 9, 10))
    assert [opened[0].get("y"), opened[1].get("y")] == ["0", "50"]
    assert opened[2].get("d") == "M5 0V60"
    assert texts[1].get("y") == "30", "the picture itself stays as it was"
    assert open_band([texts], at=5, height=20, around=(0, 0, 3, 3)) is not None, "a frame grows"
    assert open_band([texts], at=5, height=20, around=(20, 0, 3, 3)) is None, "a box does not"


@pytest.mark.parametrize("name", FIGURES)
def test_a_legend_lists_only_what_is_drawn(name):
    """Whatever is special in a swatch, hatching, dots or a colour, is in the picture as well."""
    looks = [(as_swatch(shape), special(shape)) for shape in shapes_of(root_of(call(name).svg))]
    drawn = {look for is_swatch, found in looks if not is_swatch for look in found}
    listed = {look for is_swatch, found in looks if is_swatch for look in found}
    assert listed <= drawn


def as_swatch(shape):
    size = str(SWATCH_WIDTH), str(SWATCH_HEIGHT)
    return (shape.look.get("width"), shape.look.get("height")) == size


def special(shape):
    """Looks that a reader would search for: not the greys that stand for all requests."""
    fill = shape.look["fill"]
    found = {("dots", shape.look.get("stroke-dasharray"))} - {("dots", None)}
    if fill.startswith("url"):
        found.add(("hatch", ""))
    elif fill in OKABE_ITO:
        found.add(("colour", fill))
    return found


def test_a_figure_of_matplotlibs_gets_an_alternative_text():
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([1, 2], [1, 4])
    plot = viz.plot(figure, "A line from 1 to 4.", title="It rises", mark=[(2, 4, "here")])
    assert plot.alt == "It rises. A line from 1 to 4. Marked: 2 4: here."
    assert plot._repr_mimebundle_()[1] == {"image/png": {"alt": plot.alt}}
    two = Figure()
    two.subplots(1, 2)
    with pytest.raises(ValueError, match=r"mark must be \(panel, x, y, text\)"):
        viz.plot(two, "Two.", mark=[(0, 0, "where?")])


@pytest.mark.parametrize("name", FIGURES)
def test_text_fits_with_dejavu_sans_and_reads_on_dark_paper(name):
    """DejaVu Sans is the widest of the fonts that stand in for Helvetica; matplotlib brings it."""
    root = drawing(call(name, title=CLAIM))
    rules = "".join(style.text for style in root.iter(f"{SVG}style"))
    colours = dict(re.findall(r'\[fill="(#\w+)"\]\{fill:(#\w+)\}', rules))
    assert contrast(colours["#ffffff"], colours["#5f5f5f"]) > 4.5
    for text, look in inherited(root, {"font-size": "12"}):
        if text.get("textLength") is None:
            width, x = font_width(text.text, look), float(text.get("x"))
            left = x - {"middle": width / 2, "end": width}.get(look.get("text-anchor"), 0)
            assert left >= 0, text.text
            assert left + width <= float(root.get("width")), text.text


def inherited(element, look):
    """Texts with all attributes that hold for them."""
    look = look | element.attrib
    if element.tag == f"{SVG}text":
        yield element, look
    for child in element:
        yield from inherited(child, look)


def font_width(text, look):
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    bold = look.get("font-weight", "normal")
    found = font_manager.findfont(font_manager.FontProperties(family="DejaVu Sans", weight=bold))
    font = FT2Font(found)
    font.set_size(float(look["font-size"]), 72)
    font.set_text(text)
    return font.get_width_height()[0] / 64


def contrast(one, other):
    """The ratio of the Web Content Accessibility Guidelines."""

    def luminance(colour):
        channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        linear = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_of_text_reads_on_both_papers():
    owners = owners_of(forking()).values()
    pairs = [(INK, PAPER), (GREY, PAPER), (ACCENT, PAPER)]
    pairs += [(o.edge, PAPER) for o in owners] + [(INK, o.light) for o in owners]
    for text, paper in pairs:
        assert contrast(text, paper) > 4.5
        assert contrast(dark(text), dark(paper)) > 4.5
    for owner in owners:  # full colours stay as they are, and so does the ink upon them
        assert (dark(owner.solid), dark(owner.ink)) == (owner.solid, owner.ink)
    assert len({owner.light for owner in owners if owner.letter.startswith("A")}) == 3


def test_a_halo_is_a_text_of_its_own_below():
    texts = list(drawing(viz.timeline(preempting())).iter(f"{SVG}text"))
    halo, cross = [text for text in texts if text.text == "×"][-2:]
    assert (halo.get("stroke"), cross.get("stroke")) == (PAPER, None)
    assert not any(text.get("paint-order") for text in texts)
