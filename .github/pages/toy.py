"""The toy of the first page: five requests, and the memory that they get is what can be changed.

Every run is a real one, computed when the site is built; toy.js only draws them.
"""

import json
import re
from functools import cache

from minivllm.exercises import make_request
from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.palette import ON_PAGES
from minivllm.lab.viz.model.frames import StepFrame, frames
from minivllm.sim import dry_run

BLOCKS = range(10, 25)
AT_FIRST = 14
BLOCK_SIZE, BUDGET = 4, 16
# By letter: the question, its prompt tokens, the step of its arrival, and an answer whose words are
# its tokens. A language without blanks has a bar between the words.
ASKED = {
    "A": ("What is a block?", 7, 0, "Room for the keys and values of four tokens."),
    "B": ("Why is the first word slow?", 5, 0,
          "Your whole prompt is computed before it. Each later word needs one token more."),
    "C": ("Shorten this letter: …", 22, 1, "She thanks you, and will come on the ninth."),
    "D": ("Does it cost more to ask at noon?", 6, 2,
          "The same work, but more people wait for the same memory."),
    "E": ("And if memory is full?", 8, 4, "The last one admitted gives way."),
}  # fmt: skip


@cache
def toy() -> str:
    """All runs as JSON, by number of blocks; a step has who holds which block, and its words."""
    return json.dumps(
        {
            "first": AT_FIRST,
            "low": BLOCKS[0],
            "budget": BUDGET,
            "colours": ON_PAGES[: len(ASKED)],
            "asked": [
                {"letter": letter, "text": translated(text), "answer": words(translated(answer))}
                for letter, (text, _, _, answer) in ASKED.items()
            ],
            "runs": [run(num_blocks) for num_blocks in BLOCKS],
        },
        separators=(",", ":"),
    )


def words(answer: str) -> list[str]:
    """The words of an answer, each with the blank behind it."""
    return answer.split("|") if "|" in answer else re.findall(r"\S+ ?", answer)


def run(num_blocks: int) -> list[dict]:
    """Steps of the run with so many blocks, without the null block, which no request can have."""
    requests = [
        make_request(letter, prompt, len(answer.split()), at)
        for letter, (_, prompt, at, answer) in ASKED.items()
    ]
    trace = dry_run(
        requests,
        num_blocks=num_blocks + 1,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=BUDGET,
        enable_prefix_caching=False,
    )
    said = dict.fromkeys(ASKED, 0)
    told = list(frames(trace))
    return [
        step(frame, before, num_blocks, said)
        for before, frame in zip([None, *told], told, strict=False)
    ]


def step(frame: StepFrame, before: StepFrame | None, num_blocks: int, said: dict[str, int]) -> dict:
    """A step: what each request computes ("-": it waits), has said, and holds.

    Args:
        frame: of the step.
        before: of the step before it.
        num_blocks: that are drawn.
        said: words of each answer so far; a sequence without a token to compute gets its next one.
    """
    rows = {row.owner.letter: row for row in frame.rows}
    pool = ["."] * num_blocks
    for letter, row in rows.items():
        for block in row.block_ids:
            pool[block - 1] = letter
        said[letter] += row.num_computed + row.num_scheduled == row.num_tokens
    lost = set(before.running if before else ()) & set(frame.waiting)
    done = dict.fromkeys(frame.waiting, "-") | {
        letter: row.num_scheduled for letter, row in rows.items()
    }
    return {
        "done": [done.get(letter, ".") for letter in ASKED],
        "said": list(said.values()),
        "pool": "".join(pool),
        "lost": sorted(lost),
        "to": [letter for letter, row in rows.items() if row.num_new],
        "words": " ".join(filter(None, (frame.before, frame.plan, frame.result))),
    }
