"""The page: a run as one self-contained HTML file, with a slider and no server.

Python decides what each step shows (``frames``) and writes it down as JSON; ``page.js`` draws it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from minivllm.lab.viz.frames import Frame, frames
from minivllm.lab.viz.history import History, read_history
from minivllm.lab.viz.palette import Owner
from minivllm.lab.viz.pool import Pool
from minivllm.lab.viz.snapshot import take_snapshot
from minivllm.lab.viz.timeline import timeline
from minivllm.lab.viz.wording import count, token_label
from minivllm.math_utils import cdiv
from minivllm.outputs import RequestOutput
from minivllm.trace import Trace

MAX_CHARACTERS = 3_000_000  # of all frames together; of a longer run, not every step is shown
MAX_TOKENS = 20_000  # of more, the slots do not show which they hold
TOKEN_LENGTH = 6
MAX_NUMBERED = 400  # blocks; more have no room for their numbers
MAX_UNFOLDED = 8  # a longer table of outputs starts folded

Decode = Callable[[int], str] | None


def page(
    trace: Trace,
    title: str = "What the engine did",
    outputs: Iterable[RequestOutput] | None = None,
    decode: Decode = None,
) -> str:
    """The HTML of the page; ``Trace.save_html`` says what the arguments mean."""
    history = read_history(trace)
    chart = timeline(trace)
    first, last, packed = _pack(trace, decode, history.owners)
    read = files("minivllm.viz").joinpath
    return Template(read("page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        subtitle=(
            f"{trace.num_blocks} blocks of {count(trace.block_size, 'slot')}, the null block "
            f"included; at most {count(trace.max_num_batched_tokens, 'token')} in a step."
        ),
        numbers=_numbers(trace, history),
        outputs=_outputs_table(history.owners, outputs),
        timeline=chart.svg,
        timeline_alt=escape(chart.alt),
        note=_note(len(packed), trace.num_steps),
        last_frame=len(packed) - 1,
        first=_words(first),
        last=_words(last) if trace.num_steps > 1 else "",
        css=read("page.css").read_text(encoding="utf-8"),
        colours="\n".join(
            f".owner-{index} {{ --solid: {solid}; --on: {ink}; }}"
            for (solid, ink), index in _colours(history.owners).items()
        ),
        js=read("page.js").read_text(encoding="utf-8"),
        run=_for_script({**_constants(trace, history.owners, decode), "frames": packed}),
    )


# -- the frames as JSON ----------------------------------------------------------------------------


def _pack(trace: Trace, decode: Decode, owners: dict[str, Owner]) -> tuple[Frame, Frame, list]:
    """The first frame, the last one, and as many as the page can carry, written down."""
    stride = 1
    while True:
        packer, packed, size = _Packer(owners), [], 0
        for frame in frames(trace, decode):
            if frame.step == 0:
                first = frame
            if frame.step % stride == 0 or frame.step == trace.num_steps - 1:
                packed.append(packer.pack(frame))
                size += len(_dumps(packed[-1]))
        if size <= MAX_CHARACTERS or len(packed) <= 2:
            return first, frame, packed
        stride *= cdiv(size, MAX_CHARACTERS)


class _Packer:
    """Writes down what has changed since the frame before."""

    def __init__(self, owners: dict[str, Owner]):
        self._index = {seq_id: index for index, seq_id in enumerate(owners)}
        self._tables: dict[str, tuple[int, ...]] = {}
        self._queues: list[tuple[str, ...]] = [(), (), ()]
        self._cached: frozenset[int] = frozenset()

    def pack(self, frame: Frame) -> dict[str, Any]:
        rows = []
        for row in frame.rows:
            seq_id = row.owner.seq_id
            same = self._tables.get(seq_id) == row.block_ids
            rows.append([
                self._index[seq_id], row.num_computed, row.num_scheduled, row.num_tokens,
                row.num_new, 0 if same else row.block_ids,
            ])  # fmt: skip
        self._tables = {row.owner.seq_id: row.block_ids for row in frame.rows}
        queues = [frame.running, frame.waiting, frame.swapped]
        changed = [
            0 if queue == before else [self._index[seq_id] for seq_id in queue]
            for queue, before in zip(queues, self._queues, strict=True)
        ]
        cached = [sorted(frame.cached - self._cached), sorted(self._cached - frame.cached)]
        self._queues, self._cached = queues, frame.cached
        words = [frame.before, frame.plan, frame.result]
        return {"step": frame.step, "words": words, "rows": rows, "queues": changed,
                "cached": cached}  # fmt: skip


def _constants(trace: Trace, owners: dict[str, Owner], decode: Decode) -> dict[str, Any]:
    """What holds for all steps: sizes, names and tokens, and how much room there is to draw."""
    colours = _colours(owners)
    pool = Pool.of(trace, take_snapshot(trace, 0, "schedule"))
    return {
        "numSteps": trace.num_steps,
        "blockSize": trace.block_size,
        "numBlocks": trace.num_blocks,
        "numDrawn": pool.num_drawn,
        "detailed": pool.detailed,
        "dense": pool.num_drawn > MAX_NUMBERED,
        "owners": [
            {"letter": o.letter, "id": o.seq_id, "colour": colours[o.solid, o.ink]}
            for o in owners.values()
        ],
        "tokens": _tokens(trace, owners, decode) if pool.detailed else None,
    }


def _tokens(trace: Trace, owners: dict[str, Owner], decode: Decode) -> dict[str, Any] | None:
    """Every sequence's tokens as numbers of labels; a sequence only ever appends to them."""
    sequences = trace.state_at(trace.num_steps - 1).sequences
    tokens = [sequences[seq_id].token_ids for seq_id in owners]
    if sum(map(len, tokens)) > MAX_TOKENS:
        return None
    labels: dict[str, int] = {}
    numbers = [
        [labels.setdefault(token_label(token, decode, TOKEN_LENGTH), len(labels)) for token in one]
        for one in tokens
    ]
    return {"of": numbers, "texts": list(labels), "width": max(map(len, labels))}


def _colours(owners: dict[str, Owner]) -> dict[tuple[str, str], int]:
    distinct = dict.fromkeys((owner.solid, owner.ink) for owner in owners.values())
    return {colours: index for index, colours in enumerate(distinct)}


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _for_script(value: Any) -> str:
    """JSON that no HTML parser takes for a tag."""
    return _dumps(value).replace("<", "\\u003c")


# -- the parts that stand still --------------------------------------------------------------------


def _numbers(trace: Trace, history: History) -> str:
    numbers = {
        "requests": len(trace.request_ids),
        "steps": len(history.steps),
        "tokens computed": history.num_computed,
        "tokens sampled": history.num_sampled,
        "preemptions": history.counts["preempted"],
        "tokens lost by them": history.num_discarded,
        "blocks at the peak": f"{history.peak_blocks} of {history.num_usable_blocks}",
    }
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in numbers.items())


def _note(num_frames: int, num_steps: int) -> str:
    if num_frames == num_steps:
        return "Every step, as its forward pass sees it."
    return (
        f"{num_frames} of {num_steps} steps, evenly chosen to keep the page small, each as its "
        "forward pass sees it."
    )


def _words(frame: Frame) -> str:
    return f"<dt>Step {frame.step}</dt><dd>{escape(frame.words)}</dd>"


def _outputs_table(owners: dict[str, Owner], outputs: Iterable[RequestOutput] | None) -> str:
    """Letter, id, prompt and completions of each request whose output was given."""
    if outputs is None:
        return ""
    rows = []
    for output in outputs:
        prompt = output.prompt if output.prompt is not None else output.prompt_token_ids
        for completion in output.outputs:
            suffix = f"/{completion.index}" if completion.index else ""
            owner = owners.get(output.request_id + suffix)
            text = completion.text or completion.token_ids
            cells = (output.request_id + suffix, prompt, text, completion.finish_reason or "")
            rows.append(
                f'<tr><th scope="row">{owner.letter if owner else ""}</th>'
                + "".join(f"<td><div>{escape(str(cell))}</div></td>" for cell in cells)
                + "</tr>"
            )
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("", "request", "prompt", "output", "finished")
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    unfolded = " open" if len(rows) <= MAX_UNFOLDED else ""
    return (
        f"<details{unfolded}><summary>Prompts and outputs</summary>"
        f'<div class="scroll">{table}</div></details>'
    )
