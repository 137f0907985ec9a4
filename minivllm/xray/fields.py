"""Fields of an X-ray file: which values may stand in its header, its records and its requests.

A file may come from elsewhere, or be broken. What is read has passed here, so that a
number is a number wherever it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from typing import Any

from minivllm.trace.records import Record
from minivllm.trace.state import State
from minivllm.utils.validation import check

_MOST_BLOCKS = 10**7
_MOST_GROUPS = 1000
_LARGEST = 2**53  # also a step, and a time in seconds
_NUMBERS = {  # least and largest of those in a header
    "num_blocks": (2, _MOST_BLOCKS), "block_size": (1, 10**6), "engine": (0, 10**6),
    "max_num_batched_tokens": (1, 10**9), "max_num_seqs": (1, 10**7), "max_model_len": (1, 10**9),
    "long_prefill_token_threshold": (0, 10**9), "num_speculative_tokens": (0, 10**6),
    "num_lookahead_tokens": (0, 10**6), "max_concurrent_batches": (1, 10**4),
    "watermark_blocks": (0, _MOST_BLOCKS),
}  # fmt: skip
_TEXTS = ("vllm_version", "scheduler", "model", "policy")
_SWITCHES = ("text", "enable_prefix_caching", "enable_chunked_prefill", "async_scheduling",
             "scheduler_reserve_full_isl")  # fmt: skip


def check_header(header: Mapping[str, Any]) -> None:
    """Check a file's first line: what is needed is there, and what is there has its type.

    Raises:
        ValueError: naming the field.
    """
    needed(header, "settings")
    check(isinstance(header["settings"], dict), "settings", header["settings"], "an object")
    for name in ("num_blocks", "block_size", "max_num_batched_tokens"):
        needed(header, name)
    for place in (header, header["settings"]):
        for name, value in place.items():
            if name in _NUMBERS:
                low, high = _NUMBERS[name]
                ok = type(value) is int and low <= value <= high
                check(ok, name, value, f"an integer from {low} to {high}")
            elif name in _TEXTS:
                check(isinstance(value, str), name, value, "a text")
            elif name in _SWITCHES:
                check(isinstance(value, bool), name, value, "true or false")
            elif name == "started":
                check(is_time(value), name, value, "a time in seconds")
    _check_groups(header)


def _check_groups(header: Mapping[str, Any]) -> None:
    groups = header.get("groups", [])
    ok = isinstance(groups, list) and len(groups) <= _MOST_GROUPS
    check(ok, "groups", groups, f"a list of at most {_MOST_GROUPS}")
    for index, group in enumerate(groups):
        name = f"groups[{index}]"
        check(isinstance(group, dict), name, group, "an object")
        size, kind = group.get("block_size"), group.get("kind")
        ok = type(size) is int and 1 <= size <= 10**6
        check(ok, f"{name}.block_size", size, f"an integer from 1 to {10**6}")
        check(kind in ("full", "sliding"), f"{name}.kind", kind, "'full' or 'sliding'")
        window = group.get("sliding_window")
        ok = type(window) is int and 1 <= window <= 10**9
        ok = window is None if kind == "full" else ok
        allowed = "not there" if kind == "full" else f"an integer from 1 to {10**9}"
        check(ok, f"{name}.sliding_window", window, allowed)
    interval = header["settings"].get("prefix_cache_retention_interval", 0)
    ok = interval is None or (type(interval) is int and 0 <= interval <= 10**9)
    what = f"an integer from 0 to {10**9}, or null"
    check(ok, "prefix_cache_retention_interval", interval, what)


def needed(header: Mapping[str, Any], name: str) -> Any:
    """A field of a header, or of its settings.

    Raises:
        ValueError: if it is not there.
    """
    for place in (header, header.get("settings", {})):
        if name in place:
            return place[name]
    raise ValueError(f"the X-ray's first line lacks {name!r}.")


def check_requests(requests: Any) -> None:
    """Raise ``ValueError`` unless it says of requests, by their ids, what they ask for."""
    ok = isinstance(requests, dict) and all(isinstance(v, dict) for v in requests.values())
    check(ok, "requests", requests, "an object of objects")
    for asked in requests.values():
        for name in ("arrival_time", "clock_drift"):
            value = asked.get(name, 0)
            check(is_time(value), name, value, "a time in seconds")
        for name in ("priority", "max_tokens"):
            value = asked.get(name)
            check(value is None or is_whole(value), name, value, "an integer")
        hashes = asked.get("block_hashes", [])
        ok = isinstance(hashes, list) and all(isinstance(text, str) for text in hashes)
        check(ok, "block_hashes", hashes, "a list of texts")


def check_record(record: Record) -> None:
    """Raise ``ValueError`` for a record with a value of another type."""
    kind = type(record)
    if kind not in _CHECKS:
        _CHECKS[kind] = [(f.name, *_check_of(f)) for f in fields(kind)]
    for name, is_right, allowed in _CHECKS[kind]:
        value = getattr(record, name)
        if not is_right(value):
            check(False, f"{kind.__name__}.{name}", value, allowed)


def check_beginning(state: State) -> None:
    """Raise ``ValueError`` unless each block is free or held, and each queue has known names."""
    check(is_whole(state.step) and state.step >= -1, "step", state.step, "an integer")
    for queue in (state.running, state.swapped, state.waiting):
        known = [name for name in queue if name in state.sequences]
        check(known == queue, "a queue of the beginning", queue, "a list of sequences")
    held = set(state.ref_counts)
    blocks = held | set(state.free_queue)
    ok = blocks == set(range(1, state.num_blocks)) and not held & set(state.free_queue)
    check(ok, "blocks of the beginning", len(blocks), f"{state.num_blocks - 1}, free or held")
    check(blocks >= set(state.contents), "cached blocks", list(state.contents), "known ones")
    for seq in state.sequences.values():
        ok = len(seq.other_tables) < _MOST_GROUPS
        check(ok, f"groups of {seq.seq_id!r}", len(seq.tables), f"at most {_MOST_GROUPS}")
        for value in (seq.token_ids, *seq.tables):
            check(_are_whole(value), f"numbers of {seq.seq_id!r}", value, "a list of integers")
        counts = (seq.num_prompt_tokens, seq.num_computed_tokens, seq.num_scheduled_tokens)
        check(_are_whole(counts), f"counts of {seq.seq_id!r}", counts, "integers")


def is_whole(value: Any) -> bool:
    """True for an integer that a step, a block or a token may have."""
    return type(value) is int and -_LARGEST < value < _LARGEST


def is_time(value: Any) -> bool:
    """True for a number of seconds; not for one that is infinite, or no number."""
    return type(value) in (int, float) and -_LARGEST < value < _LARGEST


def _check_of(field: Field) -> tuple[Callable[[Any], bool], str]:
    """Say which values a record's field may have."""
    if field.name == "group" and field.type == "int":  # a state has a list for each up to this one
        return _is_group, f"a KV cache group, 0 to {_MOST_GROUPS - 1}"
    return _TYPES[str(field.type)]


def _is_group(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST_GROUPS


def _are_whole(values: Any) -> bool:
    return set(map(type, values)) <= {int}


_OF: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (is_whole, "an integer"),
    "float": (is_time, "a number of seconds"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "tuple[int, ...]": (lambda v: isinstance(v, tuple) and _are_whole(v), "a list of integers"),
    "tuple[str, ...]": (
        lambda v: isinstance(v, tuple) and all(isinstance(text, str) for text in v),
        "a list of texts",
    ),
    "tuple[bytes, ...]": (
        lambda v: isinstance(v, tuple) and all(isinstance(data, bytes) for data in v),
        "a list of hashes",
    ),
    "tuple[tuple[str, int, int], ...]": (lambda v: v == (), "empty: files tell of no items"),
}  # by the type of a record's field
_TYPES = _OF | {
    f"{name} | None": (lambda value, ok=ok: value is None or ok(value), f"{allowed}, or null")
    for name, (ok, allowed) in _OF.items()
}
_CHECKS: dict[type[Record], list[tuple[str, Callable[[Any], bool], str]]] = {}
