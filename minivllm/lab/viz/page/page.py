"""The page: a run as one self-contained HTML file, with a slider and no server.

Python decides what each step shows (``frames``) and writes it down as JSON; ``page.js`` draws it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup

from minivllm import envs
from minivllm.lab.translation import TEXTS, of_a_page, translated
from minivllm.lab.viz.blocks.pool import Pool
from minivllm.lab.viz.blocks.snapshot import take_snapshot
from minivllm.lab.viz.draw.palette import COLOURS, ON_PAGES, Owner, owners_of
from minivllm.lab.viz.draw.wording import count, token_label
from minivllm.lab.viz.figures.timeline import timeline
from minivllm.lab.viz.model.frames import StepFrame, frames
from minivllm.lab.viz.model.timeline_model import History, TimelineWindow, read_history
from minivllm.lab.viz.model.times import step_milliseconds
from minivllm.lab.viz.page.timeline_data import timeline_to_json
from minivllm.outputs import RequestOutput
from minivllm.trace import Trace
from minivllm.trace.groups import TableGroup, group_labels
from minivllm.utils.math_utils import cdiv

MAX_CHARACTERS = 3_000_000  # of all frames together; of a longer run, not every step is shown
MAX_TOKENS = 20_000  # of more, the slots do not show which they hold
TOKEN_LENGTH = 6
MAX_NUMBERED = 400  # blocks; more have no room for their numbers
LANGUAGE = translated("en").split("-")[0]
HALF = "" if LANGUAGE == "en" else f"{LANGUAGE}/"  # of the site
WAYS = {  # of the site, as in its own header
    translated("Learn"): "course.html",
    translated("Play"): f"../playground/{LANGUAGE}.html" if HALF else "playground/index.html",
    translated("Read the code"): "code.html",
    translated("Search"): "index.html#search",
    translated("Get the code"): "index.html#get",
}
JSON = {"ensure_ascii": False, "separators": (",", ":")}

Decode = Callable[[int], str] | None


@dataclass(frozen=True)
class Waits:
    """A table of requests that waited.

    ``rows`` are dicts with "row" (of the timeline), "letter", "request", "steps", "seconds", "why";
    ``summary`` says it in a sentence.
    """

    summary: str
    rows: list[dict[str, Any]]


def sum_of_waits(num_waited: int, num_requests: int, num_steps: int, why: str) -> str:
    """The summary of ``Waits``; ``why`` counts the steps of each cause."""
    if not num_waited:
        return f"{count(num_requests, 'request')}, and none waited."
    waited = f"{num_waited} of {count(num_requests, 'request')} waited"
    return f"{waited}, together {count(num_steps, 'step')}: {why}."


def save_html(
    trace: Trace,
    path: str | Path,
    title: str = "What the engine did",
    outputs: Iterable[RequestOutput] | None = None,
    decode: Decode = None,
) -> None:
    """Write one page that steps through a run: a file that needs no server and no network.

    A slider, the arrow keys or a play button go through the steps, ``#step=7`` in the address
    opens one of them. Of a very long run not every step is shown, and the page says so.

    Args:
        trace: of the run, such as ``llm.trace``.
        path: of the file; an existing one is replaced.
        title: of the page.
        outputs: what ``LLM.generate`` returned, to show texts beside letters.
        decode: turns a token id into text, to be shown in place of the id.

    Raises:
        ValueError: for a trace without steps.
    """
    Path(path).write_text(page(trace, title, outputs, decode), encoding="utf-8")


def page(
    trace: Trace,
    title: str,
    outputs: Iterable[RequestOutput] | None,
    decode: Decode,
    waits: Waits | None = None,
) -> str:
    """Return the HTML of the page; ``save_html`` says what the arguments mean.

    ``waits`` is of a run whose times were measured: they become a table, and the times are told.
    """
    history = read_history(trace)
    milliseconds = None if waits is None else step_milliseconds(trace, history, "seconds")
    whole = TimelineWindow.of(history, 0, trace.num_steps - 1)
    rows = history.rows.values()
    chart = timeline(trace)
    first, last, packed = _pack(trace, decode, history.owners)
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            num_blocks=trace.num_blocks,
            slots=count(trace.block_size, "slot"),
            budget=count(trace.max_num_batched_tokens, "token"),
            numbers=_numbers(trace, history),
            outputs=None if outputs is None else _output_rows(history.owners, outputs),
            waits=None if waits is None else waits.rows,
            summary=None if waits is None else waits.summary,
            timeline=chart,
            num_frames=len(packed),
            num_steps=trace.num_steps,
            still=[first, last] if trace.num_steps > 1 else [first],
            run={
                **_constants(trace, history.owners, decode),
                "frames": packed,
                "timeline": timeline_to_json(whole, rows, milliseconds),
                "told": whole.facts,
            },
        )
    )


class InLanguage(Extension):
    """Templates of HTML with the texts of the language that is set."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """Return a template's source with other texts."""
        from minivllm.lab.translation.pages import exchanged_html  # only where a language is set

        return exchanged_html(source, of_a_page) if str(name).endswith(".html") else source


def environment(*more: BaseLoader) -> Environment:
    """Jinja with everything escaped, in the language that is set.

    In templates ``raw(name)`` is one of our own files as it is, ``lang`` the page's language, and
    ``words(name, ...)`` the script that comes before these scripts where that is not English.

    Args:
        more: where there are further files beside those of this directory.
    """
    loader = ChoiceLoader([PackageLoader("minivllm.lab.viz", "page"), *more])
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        extensions=[InLanguage] if TEXTS else [],
    )

    def raw(name: str) -> Markup:
        return Markup(loader.get_source(environment, name)[0])

    environment.policies["json.dumps_kwargs"] = JSON
    environment.globals["owner_colours"] = ON_PAGES
    environment.globals["ways"] = WAYS
    environment.globals["site"] = envs.site_url() and f"{envs.site_url()}{HALF}"
    environment.globals["raw"] = raw
    environment.globals["lang"] = translated("en")
    environment.globals["words"] = lambda *names: words_script(environment, map(raw, names))
    return environment


def words_script(environment: Environment, scripts: Iterable[str]) -> Markup:
    """Return ``words.js``, with the texts of these scripts."""
    from minivllm.lab.translation.pages import words  # only where a language is set

    template = environment.get_template("words.js")
    return Markup(template.render(words=words(scripts, of_a_page)))


# -- the frames as JSON ----------------------------------------------------------------------------


def _pack(
    trace: Trace, decode: Decode, owners: dict[str, Owner]
) -> tuple[StepFrame, StepFrame, list]:
    """The first frame, the last one, and all that fit into the page, encoded for JSON."""
    stride = 1
    while True:
        packer = Packer(owners, _drawn(trace).detailed)
        packed = []
        size = 0
        for frame in frames(trace, decode):
            if frame.step == 0:
                first = frame
            if frame.step % stride == 0 or frame.step == trace.num_steps - 1:
                packed.append(packer.pack(frame))
                size += len(json.dumps(packed[-1], **JSON))
        if size <= MAX_CHARACTERS or len(packed) <= 2:
            return first, frame, packed
        stride *= cdiv(size, MAX_CHARACTERS)


class Packer:
    """Delta encoding of frames: what has changed since the frame before."""

    def __init__(self, owners: dict[str, Owner], detailed: bool):
        self._detailed = detailed  # if not, there is no room for what free blocks hold
        self._free: list[list[int]] = []
        self._index = {seq_id: index for index, seq_id in enumerate(owners)}
        self._tables: dict[tuple[str, int], tuple[int, ...]] = {}  # by sequence and group
        self._queues: list[tuple[str, ...]] = [(), (), (), (), ()]
        self._cached: frozenset[int] = frozenset()

    def pack(self, frame: StepFrame) -> dict[str, Any]:
        rows = []
        for row in frame.rows:
            seq_id = row.owner.seq_id
            same = self._tables.get((seq_id, row.group)) == row.block_ids
            rows.append([
                self._index[seq_id], row.num_computed, row.num_scheduled, row.num_tokens,
                row.num_new, 0 if same else row.block_ids, row.num_in_flight,
                *([row.group, row.left] if row.group or row.left else []),
            ])  # fmt: skip
        self._tables = {(row.owner.seq_id, row.group): row.block_ids for row in frame.rows}
        queues = [
            frame.running, frame.waiting, frame.swapped, frame.receiving, frame.sending,
        ]  # fmt: skip
        changed = [
            0 if queue == before else [self._index[seq_id] for seq_id in queue]
            for queue, before in zip(queues, self._queues, strict=True)
        ]
        cached = [sorted(frame.cached - self._cached), sorted(self._cached - frame.cached)]
        free = [
            [
                block.block_id,
                self._index[block.owner.seq_id],
                block.logical,
                block.place,
                *([block.group] if block.group else []),
            ]
            for block in frame.free
            if self._detailed
        ]
        same = free == self._free
        self._free = free
        self._queues = queues
        self._cached = frame.cached
        words = [frame.before, frame.plan, frame.result]
        return {"step": frame.step, "words": words, "rows": rows, "queues": changed,
                "cached": cached, "free": 0 if same else free}  # fmt: skip


def run_to_json(trace: Trace) -> dict[str, Any]:
    """All that draw.js draws of a run: constants, and the frames of its steps; without tokens."""
    owners = owners_of(trace)
    constants = {**_constants(trace, owners, None), "tokens": None}
    return {**constants, "frames": _pack(trace, None, owners)[2]}


def _constants(trace: Trace, owners: dict[str, Owner], decode: Decode) -> dict[str, Any]:
    """Constants of all steps: sizes, names and tokens, and the room to draw."""
    pool = _drawn(trace)
    sequences = trace.state_at(trace.num_steps - 1).sequences  # tokens are only ever appended
    tokens = [sequences[seq_id].token_ids for seq_id in owners]
    return {
        "numSteps": trace.num_steps,
        "blockSize": trace.block_size,
        "numBlocks": trace.num_blocks,
        "numDrawn": pool.num_drawn,
        "detailed": pool.detailed,
        "dense": pool.num_drawn > MAX_NUMBERED,
        "owners": owners_to_json(owners),
        "tokens": tokens_to_json(tokens, decode) if pool.detailed else None,
        **groups_to_json(trace.groups),
    }


def groups_to_json(groups: Sequence[TableGroup]) -> dict[str, Any]:
    """Names and block sizes of the KV cache groups; nothing of one alone."""
    told = [
        {"key": label.key, "name": label.name, "blockSize": group.block_size}
        for group, label in zip(groups, group_labels(groups), strict=False)
    ]
    return {"groups": told} if told else {}


def _drawn(trace: Trace) -> Pool:
    return Pool.of(trace, take_snapshot(trace, 0, "schedule"))


def owners_to_json(owners: dict[str, Owner]) -> list[dict[str, Any]]:
    """Letters, ids and colours; elsewhere an owner is its place in this list."""
    return [
        {"letter": o.letter, "id": o.seq_id, "colour": COLOURS[o.solid, o.ink]}
        for o in owners.values()
    ]


def tokens_to_json(tokens: list[list[int]], decode: Decode) -> dict[str, Any] | None:
    """Every sequence's tokens as numbers of labels; None if they are too many to be shown."""
    if sum(map(len, tokens)) > MAX_TOKENS:
        return None
    labels: dict[str, int] = {}

    @cache
    def number(token: int) -> int:
        return labels.setdefault(token_label(token, decode, TOKEN_LENGTH), len(labels))

    numbers = [[number(token) for token in ids] for ids in tokens]
    return {"of": numbers, "texts": list(labels), "width": max(map(len, labels), default=0)}


# -- the parts that stand still --------------------------------------------------------------------


def _numbers(trace: Trace, history: History) -> dict[str, int | str]:
    numbers: dict[str, int | str] = {
        translated("requests"): len(trace.request_ids),
        translated("steps"): len(history.steps),
        "tokens computed": history.num_computed,
        "tokens sampled": history.num_sampled,
        translated("preemptions"): history.counts["preempted"],
        "tokens dropped": history.num_discarded,
        "tokens computed again": history.num_recomputed,
        "blocks at the peak": f"{history.peak_blocks} of {history.num_usable_blocks}",
    }
    if wasted := history.counts["wasted"]:
        numbers["tokens wasted after an end"] = wasted
    return numbers


def _output_rows(
    owners: dict[str, Owner], outputs: Iterable[RequestOutput]
) -> list[tuple[str, tuple]]:
    """Row of each completion of the given outputs: letter, id, prompt, text and end."""
    rows = []
    for output in outputs:
        prompt = output.prompt if output.prompt is not None else output.prompt_token_ids
        for completion in output.outputs:
            suffix = f"/{completion.index}" if completion.index else ""
            owner = owners.get(output.request_id + suffix)
            text = completion.text or completion.token_ids
            cells = (output.request_id + suffix, prompt, text, completion.finish_reason or "")
            rows.append((owner.letter if owner else "", cells))
    return rows
