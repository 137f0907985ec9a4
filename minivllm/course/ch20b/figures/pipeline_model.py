"""Pipeline: which plan each stage worked on in each call of the engine, from the trace."""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.lab.viz.draw.palette import Owner, owners_of
from minivllm.lab.viz.draw.wording import span
from minivllm.lab.viz.model.timeline_model import read_history
from minivllm.trace import Trace
from minivllm.trace.records import OWN_PLAN, Scheduled, StepEnded
from minivllm.utils.validation import check


@dataclass(frozen=True)
class Pipeline:
    """Stages of a run, and the batches that went through them.

    In each call the engine makes one plan. The plan of call 5 is with the first stage in call 5,
    with the second in call 6, and so on. A plan without tokens is a bubble.

    Args:
        num_stages: as many as plans are in flight at most.
        batches: by call, the sequences of its plan, without those of plans that have no tokens.
        first, last: calls that are looked at, both included.
    """

    num_stages: int
    batches: dict[int, list[Owner]]
    first: int
    last: int

    def batch(self, stage: int, call: int) -> list[Owner]:
        """Sequences that a stage worked on in a call; none in a bubble."""
        return self.batches.get(call - stage, [])

    @property
    def num_cells(self) -> int:
        return self.num_stages * (self.last - self.first + 1)

    @property
    def num_busy(self) -> int:
        """Cells that are not bubbles."""
        calls = range(self.first, self.last + 1)
        return sum(
            bool(self.batch(stage, call)) for stage in range(self.num_stages) for call in calls
        )


def read_pipeline(trace: Trace, first: int | None = None, last: int | None = None) -> Pipeline:
    """The pipeline of a run; arguments and errors as of ``pipeline_grid``."""
    check(trace.num_steps > 0, "trace", trace, "of an engine that has run at least one step")
    end = trace.num_steps - 1
    first = trace.first_step if first is None else first
    last = end if last is None else last
    ok = trace.first_step <= first <= last <= end
    check(ok, "steps", (first, last), f"first and last, from {trace.first_step} to {end}")
    late = [
        record.step - record.plan
        for record in trace.of(StepEnded)
        if record.plan is not None and record.plan != OWN_PLAN
    ]
    rows = read_history(trace).rows.values()
    # a plan that is made ahead of its tokens is in flight, and in no stage
    ahead = any(cell.is_placeholder for row in rows for cell in row.values())
    owners = owners_of(trace)
    batches = {}
    for record in trace.of(Scheduled):
        batches.setdefault(record.step, []).append(owners[record.seq_id])
    return Pipeline(1 - ahead + max(late, default=0), batches, first, last)


def batch_label(batch: list[Owner]) -> str:
    """Letters of a batch: "ABC", or "A–H" of more, whatever is between the first and the last."""
    letters = [owner.letter for owner in batch]
    return "".join(letters) if len(letters) <= 3 else f"{letters[0]}–{letters[-1]}"


def calls_label(pipeline: Pipeline) -> str:
    """ "calls 0–11"."""
    return f"calls {span(pipeline.first, pipeline.last)}"
