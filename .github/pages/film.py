"""The run that moves on the first page: every step of a real one, from its trace."""

import json
from html import escape

from minivllm.exercises import make_request
from minivllm.lab.viz.model.frames import frames
from minivllm.sim import dry_run
from minivllm.viz import block_grid, timeline

# By letter: prompt tokens, output tokens, the step of its arrival. The pool is too small for all.
REQUESTS = {
    "A": (7, 9, 0), "B": (5, 14, 0), "C": (22, 9, 1), "D": (6, 11, 2), "E": (8, 6, 4),
}  # fmt: skip


def film() -> tuple[str, str]:
    """HTML of a figure, a timeline above a block pool; and all steps as JSON, for film.js."""
    requests = [make_request(name, *sizes) for name, sizes in REQUESTS.items()]
    trace = dry_run(requests, num_blocks=18, block_size=4, max_num_batched_tokens=16)
    told = list(frames(trace))
    pools = [block_grid(trace, frame.step).svg for frame in told]
    words = [" ".join(text for text in (f.before, f.plan) if text) for f in told]
    run = timeline(trace, title="Five requests share a budget of 16 tokens a step and 17 blocks")
    picture = (
        '<figure class="film" id="film">'
        f'<div class="figure" id="film-run">{run.svg}</div>'
        '<p class="controls" hidden><button type="button" id="film-play">Play</button>'
        f'<input type="range" id="film-step" min="0" max="{len(told) - 1}" value="0" '
        'aria-label="Step"> <output id="film-at" for="film-step"></output></p>'
        f'<figcaption id="film-words">{escape(words[0])}</figcaption>'
        f'<div class="figure" id="film-pool">{pools[0]}</div>'
        "</figure>"
    )
    return picture, json.dumps({"pools": pools, "words": words})
