"""Names what another CPU might decide otherwise: ``pytest notebooks --draws``.

A notebook prints what was drawn, and two CPUs agree on logits only to some digits. So a number that
was drawn should be far from the edges of its interval, and a best token far ahead of the second;
and a number in a picture far from the middle of the two that it can be rounded to.
This file is run by the notebooks' kernels as they start, in their own namespace, so its names have
an underscore that no notebook uses. It imports nothing of the package itself:
it waits until a notebook does.
"""

import os
import sys
from functools import wraps
from importlib.machinery import PathFinder

_MARGIN = 1e-4  # what the tests call a clear decision, too
_SHARE = 1e-5  # of a number: so far two CPUs may be apart
_cell: list[str] = ["?"]  # the first line of what is running


class _Watch:
    """A finder of modules that lets some of them be loaded as always, and then changes them."""

    def find_spec(self, name, path=None, target=None):
        if name not in _WATCHED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def load_and_watch(module):
            load(module)
            _WATCHED[name](module)

        spec.loader.exec_module = load_and_watch
        return spec


def _watch_sampler(sampler) -> None:
    """Let every draw and every best token of this module be looked at."""
    sample, best_tokens = sampler.sample_from_cdf, sampler.best_tokens
    call = sampler.Sampler.__call__
    greedy_rows: list[int] = []

    @wraps(call)  # a notebook may show the source
    def watched_call(self, logits, metadata):
        random = set(metadata.random_rows)
        greedy_rows[:] = [row for row in range(len(logits)) if row not in random]
        return call(self, logits, metadata)

    @wraps(sample)
    def watched_draw(probs, numbers):
        edges = probs.cumsum(dim=-1)
        edges = edges / edges[:, -1:]
        _report_near("drawn", (edges - numbers[:, None]).abs().amin(dim=-1).tolist())
        return sample(probs, numbers)

    @wraps(best_tokens)
    def watched_best(logits):
        if greedy_rows:
            first, second = logits[greedy_rows].topk(2, dim=-1).values.unbind(-1)
            _report_near("best", (first - second).tolist())
        return best_tokens(logits)

    sampler.sample_from_cdf, sampler.best_tokens = watched_draw, watched_best
    sampler.Sampler.__call__ = watched_call


def _watch_pictures(wording) -> None:
    """Let every number be looked at that a figure rounds."""
    as_drawn = wording.as_drawn

    @wraps(as_drawn)
    def watched_rounding(value, digits):
        rounded = as_drawn(value, digits)
        to_middle = abs(abs(value - rounded) - 0.5 * 10**-digits)
        if to_middle < _SHARE * abs(value):
            _report(f"rounded to {rounded:g}, {to_middle:.1e} from the middle of two")
        return rounded

    wording.as_drawn = watched_rounding


_WATCHED = {
    "minivllm.sampling.sampler": _watch_sampler,
    "minivllm.lab.viz.draw.wording": _watch_pictures,
}


def _report_near(how: str, margins: list[float]) -> None:
    """Report each that is closer than the margin."""
    for margin in margins:
        if margin < _MARGIN:
            _report(f"{how}, {margin:.1e} from another token")


def _report(what: str) -> None:
    """A line, with the cell that it is in."""
    with open(os.environ["CLOSE_DRAWS"], "a") as file:
        file.write(f"{what}: {_cell[0]}\n")


def _note_cell(info) -> None:
    _cell[:] = info.raw_cell.strip().splitlines()[:1]


if "CLOSE_DRAWS" in os.environ:
    from IPython import get_ipython  # of the kernel that runs this file

    sys.meta_path.insert(0, _Watch())
    get_ipython().events.register("pre_run_cell", _note_cell)
