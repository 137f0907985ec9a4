"""The picture: a run that still goes on, as JSON that ``draw.js`` draws. Each one is complete."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from minivllm.lab.viz.blocks.pool import MAX_DETAILED
from minivllm.lab.viz.blocks.snapshot import MAX_ENTRIES, MAX_SLOTS
from minivllm.lab.viz.draw.palette import Owner
from minivllm.lab.viz.model.frames import StepFrame
from minivllm.lab.viz.model.live import LiveRun
from minivllm.lab.viz.model.timeline_model import TimelineWindow
from minivllm.lab.viz.page.page import (
    MAX_NUMBERED,
    Packer,
    groups_to_json,
    owners_to_json,
    tokens_to_json,
)
from minivllm.lab.viz.page.timeline_data import timeline_to_json

LINE = 20  # blocks; a line is drawn if anything in it is held
MAX_DRAWN = 400  # blocks of a large pool, if not more are held
MAX_HELD = 2000  # and then


def picture(run: LiveRun) -> dict[str, Any]:
    """Everything that a page shows, with nothing taken for known from an earlier picture."""
    frame = run.frame()
    owners = run.owners
    drawn = _drawn(run, frame)
    window = run.window()
    sizes = [run.state.block_size, *(group.block_size for group in run.state.groups)]
    detailed = len(drawn) <= MAX_DETAILED and max(sizes) <= MAX_SLOTS
    held = frame.ref_counts
    cached = frame.cached
    tokens = None
    if detailed:
        with_blocks = {row.owner.seq_id for row in frame.rows}
        sequences = run.state.sequences
        tokens = tokens_to_json(
            [sequences[s].token_ids if s in with_blocks else [] for s in owners], run.decode
        )
    return {
        "run": {
            "blockSize": run.state.block_size,
            "numBlocks": run.state.num_blocks,
            "numDrawn": len(drawn),
            "drawn": drawn,
            "detailed": detailed,
            "dense": len(drawn) > MAX_NUMBERED,
            "swaps": bool(frame.swapped),
            "transfers": bool(frame.receiving or frame.sending),
            "cachedAndFree": len(cached - held.keys()),
            "owners": owners_to_json(owners),
            "tokens": tokens,
            "maxEntries": MAX_ENTRIES,
            **groups_to_json(run.state.groups),
        },
        "frame": Packer(owners, detailed).pack(replace(frame, cached=cached & set(drawn))),
        "timeline": _last_steps(window, owners) if window else None,
        "numbers": {
            "step": run.step,
            "running": len(frame.running),
            "waiting": len(frame.waiting) + len(frame.swapped) + len(frame.receiving),
            "free": run.state.num_blocks - 1 - len(held),
            "usable": run.state.num_blocks - 1,
            "prompt": run.num_prompt_tokens,
            "cached": run.num_cached_tokens,
        },
    }


def _drawn(run: LiveRun, frame: StepFrame) -> list[int]:
    """The blocks that are drawn: all of a small pool; else lines of it, the held ones first."""
    num_blocks = run.state.num_blocks
    if num_blocks <= MAX_DRAWN:
        return list(range(num_blocks))
    held = sorted({0, *(block // LINE for block in frame.ref_counts)})[: MAX_HELD // LINE]
    others = sorted({block // LINE for block in frame.cached} - set(held))
    lines = held + others[: max(0, MAX_DRAWN // LINE - len(held))]
    return [
        block
        for line in sorted(lines)
        for block in range(line * LINE, min((line + 1) * LINE, num_blocks))
    ]


def _last_steps(window: TimelineWindow, owners: dict[str, Owner]) -> dict[str, Any]:
    """The last steps, with the place of each row's owner among ``owners``."""
    places = {owner.letter: index for index, owner in enumerate(owners.values())}
    return {
        "owners": [places[owner.letter] for owner, _ in window.rows],
        "told": window.facts,
        "said": window.alt,
        **timeline_to_json(window, [cells for _, cells in window.rows]),
    }
