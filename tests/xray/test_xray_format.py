"""The X-ray file: what is written is read again, and what bad files get."""

import gzip
import json
from dataclasses import fields

import pytest

from minivllm.trace import Trace, records
from minivllm.trace.records import (
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    Finished,
    Record,
    RequestAdded,
    Sampled,
    Scheduled,
    StepEnded,
    Verified,
)
from minivllm.trace.state import State
from minivllm.xray.format import (
    beginning_line,
    header_line,
    load_xray,
    row_of,
    step_line,
    without_text,
)

HEADER = {
    "vllm_version": "0.32.0", "scheduler": "TracingScheduler", "started": 1.5e9, "model": "m",
    "num_blocks": 9, "block_size": 2, "settings": {"max_num_batched_tokens": 8}, "text": True,
}  # fmt: skip
EXAMPLES = {
    "int": 3, "float": 0.25, "str": "a", "bool": True, "tuple[int, ...]": (1, 2),
    "tuple[bytes, ...]": (b"\x00\xff", b"ab"), "tuple[str, ...]": ("a", "b"),
    "int | None": None, "str | None": None,
}  # fmt: skip
KINDS = [k for k in vars(records).values() if isinstance(k, type) and issubclass(k, Record)]


def written(path, *lines):
    path.write_text(header_line(**HEADER) + "".join(lines))
    return path


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_a_record_of_each_kind_is_read_as_it_was_written(kind, tmp_path):
    record = kind(2, *[EXAMPLES[f.type] for f in fields(kind)[1:]])
    xray = load_xray(written(tmp_path / "x.jsonl", step_line(2, [row_of(record)], {})))
    assert xray.trace.records == [record]


def test_header_requests_and_steps(tmp_path):
    asked = {"a": {"max_tokens": 4, "priority": 1, "arrival_time": 0.5}}
    trace = Trace(9, 2, 8)
    trace.record(RequestAdded, "a", (1, 2, 3), 0, 0.5)
    lines = [step_line(-1, map(row_of, trace.take()), asked)]
    trace.start_step()
    trace.plan_step()
    trace.end_step()
    path = tmp_path / "x.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(
            [header_line(**HEADER), *lines, step_line(0, map(row_of, trace.records), {})]
        )
    xray = load_xray(path)
    assert xray.header == {"minivllm_xray": 1, **HEADER}
    assert xray.requests == asked
    assert (xray.trace.num_steps, xray.trace.request_ids) == (1, ["a"])
    assert (xray.trace.num_blocks, xray.trace.block_size) == (9, 2)
    assert xray.trace.max_num_batched_tokens == 8


def test_without_text_equal_blocks_begin_with_equal_token_ids(tmp_path):
    added = [RequestAdded(-1, name, tuple(range(5)), 0, 0.0) for name in "ab"]
    asked = {"a": {"block_hashes": ["01", "02"]}, "b": {"block_hashes": ["01", "03"]}}
    drawn = [Sampled(0, "a", 7), Verified(0, "a", (8, 9), 1)]
    line = step_line(0, [without_text(row_of(r)) for r in added + drawn], asked)
    a, b, *others = load_xray(written(tmp_path / "x.jsonl", line)).trace.records
    assert len(a.prompt_token_ids) == len(b.prompt_token_ids) == 5
    same = [x == y for x, y in zip(a.prompt_token_ids, b.prompt_token_ids, strict=True)]
    assert same == [True, True, False, False, False]
    assert others == [Sampled(0, "a", 0), Verified(0, "a", (0, 0), 1)]
    assert not {"7", "8", "9"} & set(str(json.loads(line)["records"]))


def test_a_file_can_begin_with_the_state_behind_older_steps(tmp_path):
    trace = Trace(9, 2, 8)
    trace.record(RequestAdded, "a", (1, 2, 3), 0, 0.5)
    for step in range(3):
        trace.start_step()
        if step == 0:
            trace.record(BlocksAllocated, "a", (1, 2))
            trace.record(BlocksCached, "a", (1,), (b"x",))
        trace.record(Scheduled, "a", "running" if step else "new", 3 * bool(step), 3, True)
        trace.plan_step()
        trace.record(Sampled, "a", 5)
        trace.end_step()
    trace.forget_before(2)
    lines = [
        beginning_line(trace.beginning(), {"a": {}}),
        step_line(2, map(row_of, trace.records), {}),
    ]
    again = load_xray(written(tmp_path / "x.jsonl", *lines)).trace
    assert (again.first_step, again.num_steps) == (2, 3)
    for step in (1, 2):
        assert again.state_at(step) == trace.state_at(step)


def test_a_last_line_that_is_cut_off_is_left_out(tmp_path, capsys):
    whole = step_line(0, [("Sampled", "a", 1)], {})
    path = written(tmp_path / "x.jsonl", whole, whole[:-9])
    assert load_xray(path).trace.records == [Sampled(0, "a", 1)]
    assert "last line is cut off" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("Hello\n", "line 1: this is no line of an X-ray: 'Hello'"),
        ("[1]\n", "line 1: a line of an X-ray is an object"),
        ('{"traceEvents": []}\n', "this is no X-ray"),
        ('{"minivllm_xray": 99}\n', "version 99 is not known, only 1"),
        ('{"minivllm_xray": 1}\n', "first line lacks 'settings'"),
        (header_line(**HEADER) + "nothing\n", "line 2: this is no line"),
        (header_line(**HEADER) + '{"step":0}\n', r"line 2: .*KeyError\('records'\)"),
        (header_line(**HEADER) + '{"step":0,"records":[["No"]]}\n', r"line 2: .*'No'"),
        (header_line(**HEADER) + '{"step":0,"records":[["Sampled"]]}\n', "line 2: .*seq_id"),
    ],
)
def test_a_file_that_is_no_xray_is_one_sentence(text, message, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_xray(path)


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_a_file_of_bytes_is_one_sentence(name, tmp_path):
    (tmp_path / name).write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(ValueError, match="is no X-ray"):
        load_xray(tmp_path / name)


def test_equal_names_and_ids_are_kept_once(tmp_path):
    lines = [step_line(s, [("BlocksAllocated", "a" * 40, [1000 + s % 2])], {}) for s in range(4)]
    first, second, third, _ = load_xray(written(tmp_path / "x.jsonl", *lines)).trace.records
    assert first.seq_id is second.seq_id
    assert first.block_ids[0] is third.block_ids[0]


def test_a_state_does_not_look_through_requests_that_are_over():
    state = State(-1, 9, 2)
    for step in range(300):
        name = str(step)
        for record in (
            RequestAdded(step, name, (1, 2, 3), 0, 0.0), BlocksAllocated(step, name, (1, 2)),
            Scheduled(step, name, "new", 0, 3, True), BlocksFreed(step, name, (1, 2)),
            Finished(step, name, "length"), StepEnded(step, 0.0),
        ):  # fmt: skip
            state.apply(record)
            assert len(state._busy) <= 2
    assert state.num_free_blocks == 8
    assert len(state.sequences) == 300
