"""The diagrams: drawn from code, readable on GitHub, and speaking of what is really there."""

import importlib
import importlib.util
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from minivllm.course.chapters import CHAPTERS
from minivllm.trace.records import BlockCopied, Preempted, Scheduled

HERE = Path(__file__).parents[2] / "diagrams"
SVG = "{http://www.w3.org/2000/svg}"

_spec = importlib.util.spec_from_file_location("draw_diagrams", HERE / "draw.py")
draw = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(draw)


@pytest.fixture(params=draw.DIAGRAMS)
def name(request):
    return request.param


def root_of(name):
    return ET.parse(draw.path_of(name)).getroot()


def boxes(name):
    """Left, top, right, bottom of every box; not the paper, not the quiet frames around boxes."""
    found = []
    for rect in root_of(name).iter(f"{SVG}rect"):
        if rect.get("rx") == "6":
            x, y, width, height = (float(rect.get(k)) for k in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


def words(name):
    return [text.text for text in root_of(name).iter(f"{SVG}text")]


def test_the_committed_picture_is_current(name):
    committed = draw.path_of(name).read_text(encoding="utf-8")
    assert draw.draw_diagram(name).svg == committed, "run: python diagrams/draw.py"


clips = draw.load("clips")


@pytest.fixture(params=clips.CLIPS)
def clip(request):
    return request.param


def test_a_clip_is_what_its_run_says(clip):
    committed = (HERE / clip).read_text(encoding="utf-8")
    assert clips.draw_clip(clips.CLIPS[clip]()) == committed, "run: python diagrams/clips.py"
    assert len(committed.encode()) < 300_000


def test_a_clip_shows_one_step_after_the_other_and_stands_still_for_who_asks(clip):
    """Each frame is seen for an equal part of 6 to 12 seconds; without a style one is seen."""
    root = ET.parse(HERE / clip).getroot()
    style = root.find(f"{SVG}style").text
    moving = re.search(r"@media \(prefers-reduced-motion:no-preference\)\{(.*?)\}\}", style)[1]
    assert style.count("animation") == moving.count("animation"), "nothing moves but there"
    seconds = float(re.search(r"shown ([\d.]+)s step-end infinite", moving)[1])
    frames = [group for group in root if group.get("data-frame") is not None]
    assert 6 <= seconds <= 12
    assert 6 <= len(frames) <= 12
    delays = re.findall(r'\[data-frame="(\d+)"\]\{animation-delay:-([\d.]+)s', moving)
    begins = {int(frame): seconds - float(delay) for frame, delay in delays}
    assert begins == pytest.approx({i: i * seconds / len(frames) for i in range(len(frames))})
    assert sum(group.get("visibility") != "hidden" for group in frames) == 1
    told = root.find(f"{SVG}desc").text
    assert all(f"Step {number}: " in told for number in range(len(frames)))
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "title", "desc", "style", "defs", "pattern", "g", "rect", "path", "text"}


def test_clips_show_what_their_claims_say():
    """From the traces: a prefill beside decodes, a copy of a shared block, a return."""
    records = {name: make().trace.records for name, make in clips.CLIPS.items()}
    shared = records["clip_shared_step.svg"]
    steps = {}
    for record in shared:
        if isinstance(record, Scheduled):
            steps.setdefault(record.step, {})[record.seq_id] = record.num_tokens
    assert {"A": 1, "B": 1, "C": 6} in steps.values()
    assert any(isinstance(record, BlockCopied) for record in records["clip_shared_block.svg"])
    back = records["clip_preemption.svg"]
    assert [r.seq_id for r in back if isinstance(r, Preempted)] == ["B"]
    assert [r.num_tokens for r in back if isinstance(r, Scheduled) and r.kind == "resumed"] == [9]


def test_it_is_readable_on_github(name):
    root = root_of(name)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "title", "desc", "style", "g", "a", "rect", "path", "text"}
    paper = root.find(f"{SVG}rect")
    assert (paper.get("width"), paper.get("fill")) == (root.get("width"), "#ffffff")
    assert len(root.find(f"{SVG}desc").text) > 100
    for element in root.iter():
        assert not {"style", "class"} & element.attrib.keys()
        assert float(element.get("font-size", 12)) >= 12
    assert draw.path_of(name).stat().st_size < 60_000


def test_no_line_runs_through_the_words_beside_it(name):
    """Words beside a line have a halo; they begin or end at x, or x is their middle."""
    root = root_of(name)
    lines = [
        [tuple(map(float, point.split())) for point in path.get("d")[1:].split("L")]
        for path in root.iter(f"{SVG}path")
        if "Z" not in path.get("d")
    ]
    for text in root.iter(f"{SVG}text"):
        if text.get("stroke") is None:
            continue
        x, y, width = float(text.get("x")), float(text.get("y")), 0.5 * 12 * len(text.text)
        left = x - {"middle": width / 2, "end": width}.get(text.get("text-anchor"), 0)
        for line in lines:
            for (x1, y1), (x2, y2) in pairwise(line):
                beside = max(x1, x2) <= left or left + width <= min(x1, x2)
                assert beside or max(y1, y2) <= y - 9 or y + 2 <= min(y1, y2), text.text


def test_nothing_overlaps_or_leaves_the_page(name):
    page = float(root_of(name).get("width")), float(root_of(name).get("height"))
    placed = boxes(name)
    assert len(placed) >= 5
    for index, (left, top, right, bottom) in enumerate(placed):
        assert 0 < left < right < page[0]
        assert 0 < top < bottom < page[1]
        for other in placed[:index]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, (placed[index], other)


def test_every_box_is_wide_enough_for_its_words(name):
    figure = draw.draw_diagram(name)
    assert figure.text.count("\n") > 6
    texts = list(root_of(name).iter(f"{SVG}text"))
    for left, top, right, bottom in boxes(name):
        for text in texts:
            x, y = float(text.get("x")), float(text.get("y"))
            if left < x < right and top < y < bottom:
                em = 0.61 * 14 if text.get("font-family") else 0.5 * 12
                assert len(text.text) * em <= right - left, text.text


def test_the_boxes_of_the_map_lead_to_every_notebook():
    links = {link.get("href") for link in root_of("course_map").iter(f"{SVG}a")}
    assert all((HERE / link).is_file() for link in links)
    named = {path.stem for path in (HERE.parent / "notebooks").glob("*.ipynb")}
    assert {Path(link).stem for link in links} == named - {"90_minutes"} | {"build_your_own"}


def test_the_map_is_true_to_what_its_notebooks_need():
    course_map = draw.load("course_map")
    found = {it.number: it for it in course_map.load_course().lectures()}
    first = {n for n in found if CHAPTERS[n].topic == course_map.FIRST}
    before = {n for n in found if CHAPTERS[n].topic == course_map.BEFORE}
    for number in found.keys() - first - before:
        assert first <= course_map.all_needs(number, found), "all that follows needs them"
    topics = [topic for column in course_map.COLUMNS for topic in column]
    assert len(topics) == len(set(topics))
    assert not found.keys() & course_map.load_course().TO_COME.keys()


def test_every_class_in_the_architecture_exists():
    named = draw.load("architecture").CLASSES
    for class_name, module in named.items():
        assert isinstance(getattr(importlib.import_module(module), class_name), type)
    shown = {
        text.text for text in root_of("architecture").iter(f"{SVG}text") if text.get("font-family")
    }
    assert shown == named.keys()


def test_what_the_step_calls_exists():
    from minivllm.engine.output_processor import OutputProcessor
    from minivllm.scheduling.scheduler import Scheduler
    from minivllm.worker.model_runner import ModelRunner

    heads = [w for w in words("one_step") if re.match(r"\d ", w)]
    calls = [re.sub(r"^\d +|\(.*", "", head) for head in heads]
    assert calls == ["schedule", "execute_model", "update_from_output", "process_outputs"]
    assert callable(Scheduler.schedule)
    assert callable(ModelRunner.execute_model)
    assert callable(Scheduler.update_from_output)
    assert callable(OutputProcessor.process_outputs)
    named = {
        w for name in draw.DIAGRAMS for w in words(name) if re.fullmatch(r"(?:[A-Z]\w+){2,}", w)
    }
    known = draw.load("architecture").CLASSES.keys() | {"RequestOutput"}
    states = {"WAITING", "RUNNING", "PREEMPTED", "SWAPPED", "FINISHED"}
    assert {w for w in named if re.search("[a-z][A-Z]", w)} - states <= known
