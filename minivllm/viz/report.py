"""The report: one self-contained page that walks through a trace, with a slider and no server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from minivllm.outputs import RequestOutput
from minivllm.records import Finished, Preempted, RequestAdded, Sampled, Scheduled, SwappedOut
from minivllm.trace import Trace
from minivllm.viz.blocks import Decode
from minivllm.viz.grid import block_grid
from minivllm.viz.history import read_history
from minivllm.viz.palette import owners_of
from minivllm.viz.table import block_table
from minivllm.viz.timeline import timeline
from minivllm.viz.wording import count

MAX_FRAMES = 120
MAX_UNFOLDED = 8  # a longer table of outputs starts folded
MAX_FRAME_CHARACTERS = 1_500_000  # of all frames together; a page of 2 MB still opens at once


def report(
    trace: Trace,
    title: str = "What the engine did",
    outputs: Iterable[RequestOutput] | None = None,
    decode: Callable[[int], str] | None = None,
) -> str:
    """An HTML page: the run in numbers, its timeline, and the blocks after every ``schedule()``.

    A slider, the arrow keys or a play button go through the steps. A long run shows evenly chosen
    steps, its first and last among them, and says so.

    Args:
        trace: what the engine wrote.
        title: of the page.
        outputs: what ``LLM.generate`` returned, to show texts beside letters.
        decode: turns a token id into text, to be shown in place of the id.

    Raises:
        ValueError: for a trace without steps.
    """
    history = read_history(trace)
    chart = timeline(trace)
    frames = _frames(trace, decode)
    first_step, first_events, first_body = frames[0]
    numbers = {
        "requests": len(history.rows),
        "steps": len(history.steps),
        "tokens computed": history.num_computed,
        "tokens sampled": history.num_sampled,
        "preemptions": history.counts["preempted"],
        "tokens lost by them": history.num_discarded,
        "blocks at the peak": f"{history.peak_blocks} of {history.num_usable_blocks}",
    }
    page = Template(files("minivllm.viz").joinpath("report.html").read_text(encoding="utf-8"))
    return page.substitute(
        title=escape(title),
        subtitle=(
            f"{trace.num_blocks} blocks of {count(trace.block_size, 'slot')}, the null block "
            f"included; at most {count(trace.max_num_batched_tokens, 'token')} per step."
        ),
        numbers="".join(
            f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in numbers.items()
        ),
        outputs=_outputs_table(trace, outputs),
        timeline=chart.svg,
        timeline_alt=escape(chart.alt),
        note=_note(trace, len(frames)),
        last_frame=len(frames) - 1,
        first_step=first_step,
        first_events=escape(first_events),
        first_frame=first_body,
        frames="\n".join(
            f'<template class="frame" data-step="{step}" data-events="{escape(events)}">'
            f"{body}</template>"
            for step, events, body in frames
        ),
    )


def save_report(trace: Trace, path: str | Path, **options) -> None:
    """Write the page to a file. The options are those of ``report``."""
    Path(path).write_text(report(trace, **options), encoding="utf-8")


Frame = tuple[int, str, str]  # a step, what happened in it, and its two figures


def _frames(trace: Trace, decode: Decode) -> list[Frame]:
    """As many steps as the page can carry, evenly chosen."""
    steps = range(trace.num_steps)
    # A few frames tell how large they get, and that tells how many there can be.
    probes = [len(_frame(trace, step, decode)[2]) for step in _evenly(steps, 8)]
    most = MAX_FRAME_CHARACTERS * len(probes) // sum(probes)
    most = max(2, min(MAX_FRAMES, most))
    return [_frame(trace, step, decode) for step in _evenly(steps, most)]


def _frame(trace: Trace, step: int, decode: Decode) -> Frame:
    pictures = (block_grid(trace, step, decode=decode), block_table(trace, step, decode=decode))
    body = "".join(f"<figure>{picture.svg}</figure>" for picture in pictures)
    return step, _events(trace, step), body


def _evenly(items: Sequence[int], most: int) -> Sequence[int]:
    """At most so many of them, the first and the last included."""
    if len(items) <= most:
        return items
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def _note(trace: Trace, num_frames: int) -> str:
    moment = "as its forward pass sees it, right after schedule()"
    if num_frames == trace.num_steps:
        return f"Every step, {moment}."
    chosen = f"{num_frames} of {trace.num_steps} steps"
    return f"{chosen}, evenly chosen to keep the page small; each {moment}."


def _events(trace: Trace, step: int) -> str:
    """What happened in a step, in a sentence or two, by the letters of the figures."""
    owners = owners_of(trace)
    verbs = "computes tokens of, admits, brings back, preempts, samples for, finishes, then arrives"
    told: dict[str, list[str]] = {verb: [] for verb in verbs.split(", ")}
    for record in trace.at(step):
        match record:
            case Scheduled(_, seq_id, kind, _, num_tokens):
                told["computes tokens of"].append(f"{owners[seq_id].letter} ({num_tokens})")
                if kind != "running":
                    verb = "admits" if kind == "new" else "brings back"
                    told[verb].append(owners[seq_id].letter)
            case Preempted(_, seq_id) | SwappedOut(_, seq_id):
                told["preempts"].append(owners[seq_id].letter)
            case Sampled(_, seq_id):
                told["samples for"].append(owners[seq_id].letter)
            case Finished(_, seq_id, reason):
                told["finishes"].append(f"{owners[seq_id].letter} ({reason})")
            case RequestAdded(_, request_id):
                told["then arrives"].append(owners[request_id].letter)
    parts = [f"{verb} {', '.join(names)}" for verb, names in told.items() if names]
    return f"Step {step} " + ("; ".join(parts) or "does nothing") + "."


def _outputs_table(trace: Trace, outputs: Iterable[RequestOutput] | None) -> str:
    """Letter, id, prompt and completion of each request whose output was given."""
    if outputs is None:
        return ""
    owners = owners_of(trace)
    rows = []
    for output in outputs:
        owner, completion = owners.get(output.request_id), output.outputs[0]
        prompt = output.prompt if output.prompt is not None else output.prompt_token_ids
        text = completion.text or completion.token_ids
        cells = (output.request_id, prompt, text, completion.finish_reason or "")
        rows.append(
            f'<tr><th scope="row">{owner.letter if owner else ""}</th>'
            + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
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
