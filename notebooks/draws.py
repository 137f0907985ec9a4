"""Names draws that another CPU might decide otherwise: ``pytest notebooks --draws``.

A notebook prints what was drawn, and two CPUs agree on logits only to some digits. So a number that
was drawn should be far from the edges of its interval, and a best token far ahead of the second.
This file is run by the notebooks' kernels as they start, in their own namespace, so its names have
an underscore that no notebook uses. It imports nothing of the package itself:
it waits until a notebook does.
"""

import os
import sys
from functools import wraps
from importlib.machinery import PathFinder

_MARGIN = 1e-4  # what the tests call a clear decision, too
_SAMPLER = "minivllm.sampling.sampler"
_cell: list[str] = ["?"]  # the first line of what is running


class _Watch:
    """A finder of modules that lets one of them be loaded as always, and then changes it."""

    def find_spec(self, name, path=None, target=None):
        if name != _SAMPLER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def load_and_watch(module):
            load(module)
            _watch(module)

        spec.loader.exec_module = load_and_watch
        return spec


def _watch(sampler) -> None:
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
        _report("drawn", (edges - numbers[:, None]).abs().amin(dim=-1))
        return sample(probs, numbers)

    @wraps(best_tokens)
    def watched_best(logits):
        if greedy_rows:
            first, second = logits[greedy_rows].topk(2, dim=-1).values.unbind(-1)
            _report("best", first - second)
        return best_tokens(logits)

    sampler.sample_from_cdf, sampler.best_tokens = watched_draw, watched_best
    sampler.Sampler.__call__ = watched_call


def _report(how: str, margins) -> None:
    """A line for each that is closer than the margin, with the cell that it is in."""
    close = [margin for margin in margins.tolist() if margin < _MARGIN]
    if close:
        with open(os.environ["CLOSE_DRAWS"], "a") as file:
            file.writelines(
                f"{how}, {margin:.1e} from another token: {_cell[0]}\n" for margin in close
            )


def _note_cell(info) -> None:
    _cell[:] = info.raw_cell.strip().splitlines()[:1]


if "CLOSE_DRAWS" in os.environ:
    from IPython import get_ipython  # of the kernel that runs this file

    sys.meta_path.insert(0, _Watch())
    get_ipython().events.register("pre_run_cell", _note_cell)
