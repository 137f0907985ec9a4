"""Lanes of pictures: what is encoded, what is kept, in figures, words and files for Perfetto."""

import json
import xml.etree.ElementTree as ET

import pytest
from traced_runs import chunked, overlapped, pictures

from minivllm.lab.viz import save_chrome_trace, stepper, timeline
from minivllm.lab.viz.model.frames import frames
from minivllm.lab.viz.model.live import LiveRun
from minivllm.lab.viz.model.timeline_model import read_history
from minivllm.trace.records import ItemEncoded


def titles(svg):
    return [node.text for node in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")]


def test_two_lanes_say_what_is_encoded_and_what_is_kept():
    trace = pictures()
    figure = timeline(trace)
    rows = {line.split()[0]: line.split()[1:] for line in figure.text.splitlines() if line}
    assert rows["encoded"] == [*"10 8 0 12 0 0 8 0 0 0".split(), "budget", "12"]
    assert rows["kept"] == [*"10 18 18 22 22 22 20 20 20 20".split(), "cache", "24"]
    assert "4 items encoded" in figure.text
    told = titles(figure.svg)
    assert told.count("c cow, 12 embeddings") == 2  # in the step that encodes it, in both lanes
    assert "b dog, 8 embeddings, may be evicted" in told
    assert told.count("placeholders of a cat") == 3  # one chunk of A, and two of B
    for name in ("item a: cat", "item b: dog", "item c: cow", "light: may be evicted"):
        assert name in figure.svg


@pytest.mark.parametrize("make", [chunked, overlapped])
def test_without_items_there_is_no_lane(make, tmp_path):
    trace = make()
    assert "encoded" not in timeline(trace).text
    save_chrome_trace(trace, tmp_path / "a.json", clock="steps")
    assert "encoder" not in (tmp_path / "a.json").read_text()


def test_lanes_add_up_to_the_cache_in_the_trace():
    trace = pictures()
    window = read_history(trace).items
    for step, use in window.steps.items():
        state = trace.state_at(step, "schedule")
        kept = {part.item.seq_id: (part.num_embeds, part.is_used) for part in use.kept}
        assert kept == {
            name: (item.num_embeds, bool(item.holders)) for name, item in state.items.items()
        }
        of_step = [record for record in trace.of(ItemEncoded) if record.step == step]
        assert len(use.encoded) == len(of_step)


def test_the_words_of_a_step_name_its_items():
    told = {frame.step: frame for frame in frames(pictures())}
    assert "A encodes cat" in told[0].plan
    assert "B finds cat encoded" in told[0].plan
    assert "dog leaves the encoder cache" in told[3].plan
    assert dict(told[3].items) == {"cat": (), "cow": ("cow",)}
    walk = stepper(pictures())
    walk.slider.value = 3
    assert "Encoder cache: cat, cow (C)." in walk.words.value


def test_a_page_of_a_run_that_goes_on_has_the_lanes():
    trace = pictures()
    run = LiveRun(trace.num_blocks, trace.block_size, 20, encoder_limits=(12, 24))
    run.update(trace.records)
    lanes = {lane.name: lane for lane in run.window().item_lanes}
    assert lanes["encoded"].values == [10, 8, 0, 12, 0, 0, 8, 0, 0, 0]
    assert (lanes["encoded"].limit, lanes["kept"].limit) == (12, 24)


def test_perfetto_has_a_track_of_what_is_encoded(tmp_path):
    save_chrome_trace(pictures(), tmp_path / "a.json", clock="steps")
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    encoded = [e["args"] for e in events if e["ph"] == "X" and e["name"].startswith("encode ")]
    assert [e["embeddings"] for e in encoded] == [10, 8, 12, 8]
    assert [e["for"] for e in encoded] == ["A", "A", "C", "D"]
    kept = [e["args"]["value"] for e in events if e["name"] == "embeddings kept"]
    assert kept == [10, 18, 18, 22, 22, 22, 20, 20, 20, 20, 20]
