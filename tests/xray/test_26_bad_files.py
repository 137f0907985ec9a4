"""Broken and foreign X-ray files: whatever a file holds, its reader gets a sentence."""

import gzip
import json
import random
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.lab.viz.model.live import LiveRun
from minivllm.lab.viz.page.live import picture
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.trace.state import State
from minivllm.xray import load_xray, report, verify, what_if
from minivllm.xray.command import write_pages
from minivllm.xray.follow import Following, follow, grown_lines
from minivllm.xray.replay import check_records
from minivllm.xray.replay_settings import arrivals_of, requests_of
from minivllm.xray.scenarios import parse_changes

ROOT = Path(__file__).parents[2]
WAITS = ROOT / "minivllm/xray/runs/waits.jsonl.gz"
TIGHT = gzip.decompress((ROOT / "tests/data/xray/tight.jsonl.gz").read_bytes())
LINES = TIGHT.splitlines(keepends=True)[:50]
JUNK = [None, True, -1, 0, 7, 10**30, 1e300, float("nan"), float("inf"), "", "1", "Sampled", [],
        {}, [1, 2], ["0"], [[1]], {"a": 1}]  # fmt: skip


def of_other_bytes(rng):
    data = bytearray(b"".join(LINES))
    for _ in range(rng.choice([1, 3, 20])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def with_a_hole(rng):
    data = b"".join(LINES)
    begin, end = sorted(rng.sample(range(len(data)), 2))
    return data[:begin] + data[end:]


def of_other_types(rng):
    lines = [json.loads(line) for line in LINES]
    place = lines[0 if rng.random() < 0.3 else rng.randrange(len(lines))]
    while True:
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        inner = place[key]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.2:
            break
        place = inner
    if rng.random() < 0.3:
        del place[key]
    else:
        place[key] = rng.choice(JUNK)
    return written(lines)


def of_other_records(rng):
    """Right types, wrong stories: records left out, doubled, shuffled, or about others."""
    lines = [json.loads(line) for line in LINES]
    for _ in range(rng.choice([1, 2, 4])):
        records = rng.choice(lines[1:])["records"]
        row, other = rng.choice(records), rng.choice(rng.choice(lines[1:])["records"])
        kind = rng.choice(["drop", "add", "shuffle", "number", "name"])
        if kind == "drop" and len(records) > 1:
            records.remove(row)
        elif kind == "add":
            records.insert(rng.randrange(len(records)), other)
        elif kind == "shuffle":
            rng.shuffle(records)
        elif kind == "name":
            row[1:2] = [rng.choice(["0", "3", "x"])] if isinstance(row[1], str) else row[1:2]
        else:
            index = rng.randrange(1, len(row))
            if type(row[index]) is int:
                row[index] += rng.choice([-1, 1, 500])
            elif isinstance(row[index], list) and row[index]:
                row[index][0] = rng.choice([0, 5, 99])
    if rng.random() < 0.3:
        del lines[rng.randrange(1, len(lines))]
        step = -1
        for line in lines[1:]:
            step += any(row[0] == "StepStarted" for row in line["records"])
            line["step"] = step
    return written(lines)


def written(lines):
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def watch(path):
    """Read a file as the glass page does."""
    following, run = Following(lambda text: None), None
    for line in grown_lines(path, lambda: False):
        news = following.read(line)
        if news and isinstance(news[0], State):
            trace = following.xray.trace
            run = LiveRun(trace.num_blocks, trace.block_size, trace.max_num_batched_tokens)
            run.begin(news.pop(0))
        run.update(news)
    if run is not None:
        picture(run)


def draw(path):
    xray = load_xray(path)
    check_records(xray)
    write_pages(report(xray), path.parent / "pages")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "spoil", [of_other_bytes, with_a_hole, of_other_types, of_other_records],
    ids=lambda spoil: spoil.__name__,
)  # fmt: skip
def test_any_file_gets_an_answer_or_a_sentence(tmp_path, spoil, seed):
    path = tmp_path / "run.jsonl"
    path.write_bytes(spoil(random.Random(f"{spoil.__name__} {seed}")))
    for read in (
        lambda: str(report(load_xray(path))),
        lambda: str(verify(load_xray(path))),
        lambda: str(what_if(load_xray(path), {"num_blocks": "x2"})),
        lambda: follow(path, lambda text: None, lambda: False),
        lambda: watch(path),
        lambda: draw(path),
    ):
        with suppress(ValueError):  # its sentence
            read()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda h: h.update(num_blocks=10**30), "num_blocks must be an integer from 2 to"),
        (lambda h: h.update(block_size="a"), "block_size must be an integer"),
        (lambda h: h.pop("block_size"), "first line lacks 'block_size'"),
        (lambda h: h["settings"].pop("max_num_seqs"), "first line lacks 'max_num_seqs'"),
        (lambda h: h["settings"].update(max_num_seqs=0), "max_num_seqs must be"),
        (lambda h: h.update(settings=[1]), "settings must be an object"),
        (lambda h: h.update(started="today"), "started must be a time"),
        (lambda h: h.update(minivllm_xray=2), "version 2 is not known"),
    ],
)
def test_a_header_with_nonsense_is_one_sentence(tmp_path, change, sentence):
    header = json.loads(LINES[0])
    change(header)
    path = tmp_path / "run.jsonl"
    path.write_bytes(json.dumps(header).encode() + b"\n" + b"".join(LINES[1:]))
    done = CliRunner().invoke(app, ["xray", str(path)])
    assert (done.exit_code, sentence in " ".join(done.output.split())) == (2, True), done.output


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([["Sampled", "nobody", 1]], "request 'nobody' is not there"),
        ([["BlocksAllocated", "0", [10**6]]], "blocks are numbered 1 to 11"),
        ([["Scheduled", "0", "new", 0, "all", True]], "Scheduled.num_tokens must be an integer"),
        ([["StepStarted", "now"]], "StepStarted.time must be a number of seconds"),
        ([["StepStarted", 1e400]], "StepStarted.time must be a number of seconds"),
    ],
)
def test_a_record_that_cannot_be_is_one_sentence(tmp_path, rows, sentence):
    line = {"step": 0, "records": [["RequestAdded", "0", [5], 0, 0.0, None], *rows]}
    if rows[0][0] != "StepStarted":
        line["records"].insert(1, ["StepStarted", 0.0])
    path = tmp_path / "run.jsonl"
    added = {"step": -1, "records": line["records"][:1]}
    line["records"] = line["records"][1:]
    path.write_bytes(LINES[0] + written([added, line]))
    with pytest.raises(ValueError, match=sentence):
        report(load_xray(path))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--verify", "--what-if", "num_blocks=x2"], "one of these at a time"),
        (["--verify", "--follow"], "one of these at a time"),
        (["--what-if", "num_blocks=x2", "num_blocks=x3"], "named once, with all its values"),
        (["--follow", "-o", "pages"], "without --follow"),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(arguments, sentence):
    done = CliRunner().invoke(app, ["xray", str(WAITS), *arguments])
    assert (done.exit_code, sentence in " ".join(done.output.split())) == (2, True), done.output


def test_settings_that_are_named_twice_are_refused():
    with pytest.raises(ValueError, match="named once"):
        parse_changes(["max_num_seqs=4", "max_num_seqs=8"])


def test_a_wall_clock_that_was_set_is_said():
    xray = load_xray(WAITS)
    first, second, third = list(xray.requests)[:3]
    true = arrivals_of(xray)
    xray.requests[first]["arrival_time"] += 3600
    xray.requests[second]["arrival_time"] -= 3600
    xray.requests[third] |= {
        "arrival_time": xray.requests[third]["arrival_time"] + 60, "clock_drift": 60.0,
    }  # fmt: skip
    found = report(xray)
    assert "the wall clock was set: of 2 requests" in str(found)
    assert min(found.ttft.values()) > 0
    for name in (first, second, third):
        assert arrivals_of(xray)[name] == pytest.approx(true[name], abs=0.02)


def test_a_policy_object_sees_priorities():
    class Mine(SchedulingPolicy):
        uses_priority = True

        def key(self, request):
            return request.priority

    xray = load_xray(ROOT / "tests/data/xray/priorities.jsonl.gz")
    asked = {name: wish["priority"] for name, wish in xray.requests.items()}
    assert len(set(asked.values())) > 1
    xray.header["settings"]["policy"] = Mine()
    assert {name: r.priority for name, r in requests_of(xray).items()} == asked
    assert what_if(xray, {"policy": Mine()}).cases[-1].num_preemptions >= 0
    xray.header["settings"]["policy"] = "fcfs"
    assert {r.priority for r in requests_of(xray).values()} == {0}
