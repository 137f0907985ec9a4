"""The X-ray file: what is written is read again, and what bad files get."""

import gzip
import json
from dataclasses import fields

import pytest

from minivllm.trace import Trace, records
from minivllm.trace.records import (
    BlockCopied,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    Finished,
    Forked,
    Record,
    RequestAdded,
    Sampled,
    Scheduled,
    StepEnded,
    SwappedIn,
    SwappedOut,
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
    "int | None": None, "str | None": None, "tuple[tuple[str, int, int], ...]": (),
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


# -- KV cache groups ----------------------------------------------------------------------------

OF_BLOCKS = [  # as older files have them: without a group
    ("BlocksAllocated", "a", [1, 2]),
    ("BlocksShared", "a", [1]),
    ("BlocksCached", "a", [1], ["00"]),
    ("BlockForgotten", 1),
    ("BlockCopied", "a", 1, 2),
    ("BlocksFreed", "a", [1, 2]),
    ("SwappedOut", "a", [1]),
    ("SwappedIn", "a", [2]),
]


@pytest.mark.parametrize("row", OF_BLOCKS, ids=lambda row: row[0])
def test_a_record_of_blocks_ends_with_its_group_and_older_rows_lack_it(row, tmp_path):
    lines = [step_line(0, [row, (*row, 0), (*row, 3)], {})]
    old, new, other = load_xray(written(tmp_path / "x.jsonl", *lines)).trace.records
    assert old == new != other
    assert (old.group, other.group) == (0, 3)
    assert row_of(other)[-1] == 3
    assert fields(type(old))[-1].name == "group"


@pytest.mark.parametrize("group", [-1, 1000, 1.0, "0", None])
def test_a_group_is_a_small_number(group, tmp_path):
    lines = [step_line(0, [("BlocksAllocated", "a", [1], group)], {})] * 2
    with pytest.raises(ValueError, match=r"BlocksAllocated\.group must be a KV cache group, 0 to"):
        load_xray(written(tmp_path / "x.jsonl", *lines))


def two_groups():
    """Trace of a sequence whose layers have two tables, forked, swapped out and in, and freed."""
    trace = Trace(9, 2, 8)
    trace.record(RequestAdded, "a", (1, 2, 3), 0)
    steps = (
        [(BlocksAllocated, "a", (1, 2)), (BlocksAllocated, "a", (3,), 1),
         (BlocksCached, "a", (3,), (b"x",), 1), (Scheduled, "a", "new", 0, 3, True)],
        [(Forked, "a", "a/1"), (BlockCopied, "a/1", 3, 4, 1), (BlocksAllocated, "a", (5,), 2)],
        [(BlocksFreed, "a", (1, 2)), (BlocksFreed, "a", (3,), 1), (SwappedOut, "a", (1,)),
         (SwappedOut, "a", (2,), 1)],
        [(SwappedIn, "a", (6,)), (SwappedIn, "a", (7,), 1)],
    )  # fmt: skip
    for kinds in steps:
        trace.start_step()
        for record in kinds:
            trace.record(*record)
        trace.plan_step()
        trace.end_step()
    return trace


def test_a_state_has_a_table_for_each_group():
    trace = two_groups()
    tables = [trace.state_at(step).sequences["a"].tables for step in range(4)]
    assert tables == [[[1, 2], [3]], [[1, 2], [3], [5]], [[], [], [5]], [[6], [7], [5]]]
    state = trace.state_at(1)
    assert state.sequences["a/1"].tables == [[1, 2], [4]]
    assert state.sequences["a/1"].block_ids == [1, 2]
    assert state.ref_counts == {1: 2, 2: 2, 3: 1, 4: 1, 5: 1}
    assert state.contents[3].logical == 0
    out, back = trace.state_at(2), trace.state_at(3)
    assert (out.swapped, out.sequences["a"].num_preemptions) == (["a"], 1)
    assert (back.swapped, back.sequences["a"].status) == ([], "running")
    assert not {4, 5, 6, 7} & back.free_queue.keys()


def test_a_state_with_groups_is_written_and_older_ones_are_read(tmp_path):
    trace = two_groups()
    trace.forget_before(2)
    lines = [beginning_line(trace.beginning(), {"a": {}}), step_line(2, [], {})]
    again = load_xray(written(tmp_path / "x.jsonl", *lines)).trace
    assert again.beginning() == trace.beginning()
    old = Trace(9, 2, 8)
    old.record(RequestAdded, "a", (1, 2, 3), 0)
    old.record(BlocksAllocated, "a", (1, 2))
    old.start_step()
    old.forget_before(0)
    state = json.loads(beginning_line(old.state_at(-1), {}))
    for values in state["beginning"]["sequences"]:
        del values[-1]  # older files have no further tables
    lines = [json.dumps(state) + "\n", step_line(0, [], {})]
    seq = load_xray(written(tmp_path / "y.jsonl", *lines)).trace.beginning().sequences["a"]
    assert seq.tables == [[1, 2]]
