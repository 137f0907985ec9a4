"""XRay: a run of vLLM as a file of JSON lines, and as our Trace.

The first line is a header. Each further one has the records of a step, or of what came between two
steps, and what was asked for by the requests that are new in it. A file whose oldest steps were
dropped has the state behind them as its second line. A name that ends in ".gz" is compressed.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields
from hashlib import blake2b
from os import PathLike
from typing import Any

from minivllm.logger import init_logger
from minivllm.trace import Trace, records
from minivllm.trace.groups import TableGroup
from minivllm.trace.records import Record
from minivllm.trace.state import CachedBlock, SequenceState, State
from minivllm.utils.validation import InvalidParameter, check
from minivllm.xray.fields import (
    check_beginning,
    check_header,
    check_record,
    check_requests,
    is_whole,
)
from minivllm.xray.names import told_apart

logger = init_logger(__name__)

VERSION = 1
_KINDS = {
    kind.__name__: kind
    for kind in vars(records).values()
    if isinstance(kind, type) and issubclass(kind, Record)
}
_FIELDS = {kind: [f.name for f in fields(kind)][1:] for kind in _KINDS.values()}  # after step


@dataclass
class XRay:
    """A recorded run of vLLM.

    Args:
        header: ``vllm_version``, ``scheduler``, ``started`` (seconds since 1970), ``model``,
            ``num_blocks``, ``block_size``, ``settings`` (under vLLM's names), ``groups`` of KV
            caches if not all layers keep all tokens, and ``text``: False if token ids were left
            out.
        trace: the records; times are in seconds since ``started``. Without text each prompt is made
            up: those that begin with the same blocks begin with the same token ids.
        requests: what each request asked for, by its id: ``max_tokens``, ``priority``,
            ``arrival_time`` (in seconds since ``started``) and so on.
        tells_apart: an id that a later request uses again gets a number there: "a", then "a#2".
    """

    header: dict[str, Any]
    trace: Trace
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    tells_apart: bool = False
    has_ended: bool = False  # its last line says that nothing more comes
    _names: dict[str, str] = field(default_factory=dict)  # of ids that are used again
    _ids: _OneOfEach = field(default_factory=lambda: _OneOfEach())  # of tokens and blocks

    def read_line(self, line: str) -> None:
        """Append what a line behind the header says.

        Raises:
            ValueError: if it is no such line; nothing has changed then.
        """
        content = _parsed(line)
        requests = content.get("requests", {})
        if "ended" in content:
            self.has_ended = True
            return
        try:
            if "beginning" in content:
                check_requests(requests)
                beginning = _read_state(content["beginning"], self.header)
                check_beginning(beginning)
                self.trace = new_trace(self.header, beginning)
                self.requests |= requests
            else:
                self.read_step(content["step"], content["records"], requests)
        except InvalidParameter as error:
            raise ValueError(f"this line cannot be read: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            shown = line[:60].strip()
            raise ValueError(f"this line cannot be read ({error!r}): {shown!r}.") from None

    def read_step(self, step: int, rows: Iterable[Sequence], requests: dict) -> list[Record]:
        """Append rows of a step, as they are in a file. Returns their records.

        Raises:
            ValueError: for a value of another type; nothing has changed then.
        """
        check(is_whole(step) and step >= -1, "step", step, "an integer of at least -1")
        check_requests(requests)
        names = dict(self._names)
        if self.tells_apart and (names or not self.requests.keys().isdisjoint(requests)):
            rows, requests = told_apart(rows, requests, names, known=self.requests)
        new = [self._read_row(step, row, requests) for row in rows]
        self._names = names
        self.requests |= requests
        self.trace.records += new
        self.trace.step = max(self.trace.step, step)
        return new

    def _read_row(self, step: int, row: Sequence, requests: dict) -> Record:
        name, *values = row
        if name == "RequestAdded" and isinstance(values[1], int):
            hashes = requests[values[0]].get("block_hashes", ())
            values[1] = self._made_up_prompt(values[0], values[1], hashes)
        if name == "BlocksCached":
            values[2] = [bytes.fromhex(text) for text in values[2]]
        record = _KINDS[name](step, *[self._kept(value) for value in values])
        check_record(record)
        return record

    def _kept(self, value: Any) -> Any:
        """The value as records keep it: equal names and ids are one object, which saves memory."""
        if isinstance(value, list):
            return tuple(map(self._ids.__getitem__, value))
        return sys.intern(value) if isinstance(value, str) else value

    def _made_up_prompt(self, request_id: str, length: int, block_hashes: Iterable[str]) -> list:
        """A prompt of this length: a block's token ids are all the number of the block's hash.

        So a file whose beginning was dropped has the same prompts as the whole one.
        """
        size = self.trace.block_size
        own = blake2b(request_id.encode(), digest_size=6).hexdigest()
        names = [*block_hashes, own]  # the end that fills no block is the request's own
        numbers = [int(name[:12], 16) for name in names]
        return [numbers[min(i // size, len(numbers) - 1)] for i in range(length)]


class _OneOfEach(dict):
    """A dictionary that gives for each key the first one that was equal to it."""

    def __missing__(self, key: Any) -> Any:
        self[key] = key
        return key


def load_xray(path: str | PathLike) -> XRay:
    """A file that the tracer has written, read whole. A last line that is cut off is left out.

    Raises:
        OSError: if the file cannot be read.
        ValueError: for a file that is empty, of another kind or version, or broken.
    """
    xray = None
    for number, line in enumerate(_lines(path), start=1):
        try:
            if xray is None:
                xray = read_header(line)
                xray.tells_apart = True
            else:
                xray.read_line(line)
        except ValueError as error:
            if xray is None or line.endswith("\n"):
                raise ValueError(f"{path}, line {number}: {error}") from None
            logger.warning("%s: its last line is cut off, and is left out.", path)
    if xray is None:
        raise ValueError(f"{path} is empty: an X-ray begins with a line about the run.")
    return xray


def read_header(line: str) -> XRay:
    """An X-ray without records yet, from the first line of its file.

    Raises:
        ValueError: if it is no such line, or of a version that is not known.
    """
    header = _parsed(line)
    version = header.get("minivllm_xray")
    if version is None:
        raise ValueError(f"this is no X-ray: its first line is {line[:60].strip()!r}.")
    if version != VERSION:
        raise ValueError(f"an X-ray of version {version!r} is not known, only {VERSION}.")
    check_header(header)
    return XRay(header, new_trace(header))


def header_line(**header: Any) -> str:
    """The first line of a file; its fields are those of ``XRay.header``."""
    return _line({"minivllm_xray": VERSION, **header})


def step_line(step: int, rows: Iterable[Sequence], requests: dict) -> str:
    """A line with a step's rows, and what is said of the requests that are new in it."""
    return _line({"step": step, "records": list(rows), "requests": requests})


def ended_line() -> str:
    """A file's last line, when vLLM has ended."""
    return _line({"ended": True})


def row_of(record: Record) -> tuple:
    """A record as it is written: its kind's name and its fields after ``step``, bytes in hex."""
    kind = type(record)
    values = [getattr(record, name) for name in _FIELDS[kind]]
    if kind is records.BlocksCached:
        values[2] = [digest.hex() for digest in values[2]]
    return (kind.__name__, *values)


def without_text(row: tuple) -> tuple:
    """The row without token ids: a prompt is its length, all others are 0."""
    match row:
        case ("RequestAdded", request_id, prompt, *others):
            return ("RequestAdded", request_id, len(prompt), *others)
        case ("Sampled", seq_id, _):
            return ("Sampled", seq_id, 0)
        case ("Verified", seq_id, drafts, num_accepted):
            return ("Verified", seq_id, [0] * len(drafts), num_accepted)
    return row


def beginning_line(state: State, requests: dict) -> str:
    """A file's second line, where older steps were dropped: the state behind them."""
    written = {
        "step": state.step,
        "sequences": [astuple(seq) for seq in state.sequences.values()],
        "running": state.running,
        "waiting": state.waiting,
        "swapped": state.swapped,
        "lora_slots": list(state.lora_slots.items()),
        "contents": [[block_id, *astuple(c)] for block_id, c in state.contents.items()],
        "free_queue": list(state.free_queue),
    }
    return _line({"beginning": written, "requests": requests})


def _read_state(written: dict, header: dict) -> State:
    sequences = [SequenceState(*values) for values in written["sequences"]]
    for seq in sequences:
        seq.in_flight = [(step, num_tokens) for step, num_tokens in seq.in_flight]
        seq.mm_items = ()  # files tell of no items
    state = State(
        written["step"],
        header["num_blocks"],
        header["block_size"],
        sequences={seq.seq_id: seq for seq in sequences},
        running=written["running"],
        waiting=written["waiting"],
        swapped=written.get("swapped", []),  # older files lack these two
        lora_slots=dict(written.get("lora_slots", [])),
        contents={
            block_id: CachedBlock(
                seq_id, logical, tuple(tokens), group=group[0] if group else 0
            )  # older files have no group
            for block_id, seq_id, logical, tokens, *group in written["contents"]
        },
        groups=groups_of(header),
    )
    state.free_queue = OrderedDict.fromkeys(written["free_queue"])
    return state


def new_trace(header: dict, beginning: State | None = None) -> Trace:
    """A trace without records, of the sizes that a header has.

    Args:
        header: see ``XRay``.
        beginning: the state behind older steps, if these were dropped.
    """
    budget = header["settings"]["max_num_batched_tokens"]
    num_blocks, block_size = header["num_blocks"], header["block_size"]
    groups = groups_of(header)
    return Trace(num_blocks, block_size, budget, beginning=beginning, groups=groups)


def groups_of(header: dict) -> tuple[TableGroup, ...]:
    """KV cache groups of a run; none if all layers keep all tokens."""
    return tuple(
        TableGroup(group["block_size"], group.get("sliding_window"))
        for group in header.get("groups", ())
    )


def _lines(path: str | PathLike) -> Iterator[str]:
    opened = gzip.open if str(path).endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            yield from file
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is no X-ray: {error}.") from None


def _parsed(line: str) -> dict:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"this is no line of an X-ray: {line[:60].strip()!r}.") from None
    if not isinstance(content, dict):
        raise ValueError(f"a line of an X-ray is an object, got {line[:60].strip()!r}.")
    return content


def _line(content: dict) -> str:
    return json.dumps(content, separators=(",", ":")) + "\n"
